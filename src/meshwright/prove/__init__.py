"""Proof of a plan: run it on real processes, compare with one device and with the ledger, and certify. No torch here.

Read in this order: scale.py, run.py, compare.py, certificate.py.
"""
