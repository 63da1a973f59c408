"""Fit constants to measurements: network curves from nccl-tests output or from our own bench."""
