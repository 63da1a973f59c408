"""Executes a layout on real processes. The only part that imports torch; nothing of ours imports it."""
