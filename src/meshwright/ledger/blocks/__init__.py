"""One file per block of a Transformer: what its forward and its backward compute, send and keep."""
