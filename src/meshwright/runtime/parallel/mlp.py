"""The dense MLP over tp: gate and up as one column-parallel matrix, the activation, down as a row-parallel one. Also the shared expert."""

from __future__ import annotations

from torch import Tensor

from meshwright.runtime.parallel.elementwise import activate
from meshwright.runtime.parallel.linear import column_linear, row_linear
from meshwright.runtime.parallel.setting import Setting
from meshwright.runtime.reference.weights import Weights
from meshwright.runtime.scope import in_module


def mlp(setting: Setting, weights: Weights, x: Tensor, gate_up: str, down: str) -> Tensor:
    """The normed stream x [mb, S/(cp, tp), D] to the same shape; the two modules are named by the caller."""
    tp, sp = setting.tp, setting.sp
    with in_module(gate_up):
        hidden = column_linear(x, weights[f"{gate_up}.weight"], weights.get(f"{gate_up}.bias"), tp, sp)
    with in_module(down):
        return row_linear(activate(hidden, setting.model), weights[f"{down}.weight"], weights.get(f"{down}.bias"), tp, sp)
