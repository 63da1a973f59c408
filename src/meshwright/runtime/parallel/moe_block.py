"""The mixture of experts on a rank: it routes the tokens of its stream, and the experts work on the fold (experts.py)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.runtime.parallel.elementwise import activate
from meshwright.runtime.parallel.experts import (
    bring_back,
    combine,
    plan_dispatch,
    run_experts,
    send_to_experts,
    sum_balance_statistics,
)
from meshwright.runtime.parallel.mlp import mlp
from meshwright.runtime.parallel.router import Choice, route
from meshwright.runtime.parallel.sequence import take
from meshwright.runtime.parallel.setting import MicroBatch, Setting
from meshwright.runtime.reference.moe import balance_loss, tokens_per_expert
from meshwright.runtime.reference.weights import Weights
from meshwright.runtime.scope import in_module
from meshwright.spec import names


@dataclass(frozen=True)
class Routed:
    """What routing left beside the block's output: the balance loss of the micro-batch (None without one), and how many of this rank's
    tokens chose each expert, int64 [E]."""

    balance: Tensor | None
    counts: Tensor


def moe_block(setting: Setting, weights: Weights, x: Tensor, index: int, batch: MicroBatch) -> tuple[Tensor, Routed]:
    """The normed stream x [mb, S/(cp, tp), D] to the routed experts' weighted sum plus the shared expert, of the same shape."""
    model, moe, axes = setting.model, setting.model.moe, setting.experts
    assert moe is not None
    flat = x.flatten(0, 1)
    with in_module(names.ROUTER):
        choice = route(flat, weights, moe, _given(setting, batch, index))
        counts = tokens_per_expert(choice.experts, moe.num_experts)
        balance = _balance(setting, choice, counts, batch)
    dispatch = plan_dispatch(choice.experts, moe.num_experts, axes, batch.load(index))
    rows = send_to_experts(flat, dispatch, axes)
    with in_module(names.EXPERTS):
        gate_up, down = weights[f"{names.EXPERTS}.weight"], weights[f"{names.EXPERTS}.down_weight"]
        gate_up_bias, down_bias = weights.get(f"{names.EXPERTS}.bias"), weights.get(f"{names.EXPERTS}.down_bias")
        rows = run_experts(rows, gate_up, down, lambda hidden: activate(hidden, model), dispatch, axes, gate_up_bias, down_bias)
    copies = bring_back(rows, dispatch, axes)
    with in_module(names.COMBINE):
        out = combine(copies, choice.weights, dispatch).view_as(x)
    if moe.shared_ffn_size:
        # of ``flat``, which the router has kept: x itself may lie in memory in another order
        out = out + mlp(setting, weights, flat.view_as(x), names.SHARED_GATE_UP, names.SHARED_DOWN)
    return out, Routed(balance, counts)


def _given(setting: Setting, batch: MicroBatch, index: int) -> Tensor | None:
    """The experts [T, k] that this rank's tokens are to take; None where the router chooses."""
    return None if batch.experts is None else take(batch.experts[index], setting.stream_positions).flatten(0, 1)


def _balance(setting: Setting, choice: Choice, counts: Tensor, batch: MicroBatch) -> Tensor | None:
    """This layer's balance loss over the micro-batch, wherever its tokens are; every rank of it gets the same number."""
    moe = setting.model.moe
    assert moe is not None
    if not moe.aux_loss_coefficient:
        return None
    own = torch.stack((counts.to(choice.probabilities.dtype), choice.probabilities))
    return balance_loss(sum_balance_statistics(own, setting.cp, setting.tp, setting.sp), batch.tokens.numel())


def summed(balances: list[Tensor | None]) -> Tensor | None:
    """Over layers; None where there are none."""
    found = [balance for balance in balances if balance is not None]
    return torch.stack(found).sum() if found else None
