"""Meshwright plans, explains, proves, runs and diagnoses parallel Transformers."""

__version__ = "0.1.0"
