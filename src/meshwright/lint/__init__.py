"""Checks a launch script or a framework's config against the rules of layouts, before it runs.

file -> shell.py (a script's words, nothing is executed) or TOML, JSON, YAML
     -> megatron.py, torchtitan.py, deepspeed.py, accelerate.py, serving.py -> Setup
     -> judge.py: the rules of spec/rules/ on it, in the framework's own words
"""
