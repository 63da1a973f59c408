"""Collectives: how many bytes each sends, by which algorithm, in what time."""
