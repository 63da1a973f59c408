"""The parallel layers: local tensors, and explicit collectives whose backward is written beside their forward.

What they send is the table of DESIGN section 4.1, and nothing else.
"""
