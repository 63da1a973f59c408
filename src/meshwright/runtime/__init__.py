"""Executes layouts on real processes, with torch: the only package that imports it.

It sees the inputs (spec), mesh, schedule and recording, and nothing that predicts: agreement between the two is evidence.
"""
