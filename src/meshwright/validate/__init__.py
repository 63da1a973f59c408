"""Predicted against measured: runs that others or the user timed, read, priced and compared."""
