"""The Transformer on one device, in plain PyTorch: what every layout has to reproduce.

Read in this order: model.py, attention.py, rope.py, mlp.py, moe.py, norm.py, loss.py, then train.py. Everything is a pure
function of tensors, so that the parallel layers can call the same pieces on their part of a tensor.
"""
