"""The mixture of experts: routing, experts, and what keeps the experts' loads even.

Letters: T tokens, E experts, k experts per token, D model, F ffn of one expert.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.runtime.reference.mlp import activate, mlp
from meshwright.runtime.reference.norm import widened
from meshwright.runtime.reference.weights import Weights
from meshwright.spec import names
from meshwright.spec.model import Model, Moe

BIAS_UPDATE_SPEED = 0.001
"""gamma of the loss-free balancing: DeepSeek-V3 (arXiv 2412.19437), section 4.2, first 14.3T tokens."""


@dataclass(frozen=True)
class Routing:
    """Where each token goes.

    Attributes:
        logits: [T, E] of the router.
        experts: int64 [T, k], chosen. weights: [T, k], of their outputs in the sum.
        choice: [T, E], what the choice was made by; -inf for the experts of groups that were left out.
        groups: [T, G], what the groups were chosen by; None without groups.
    """

    logits: Tensor
    experts: Tensor
    weights: Tensor
    choice: Tensor
    groups: Tensor | None = None


def moe_block(x: Tensor, weights: Weights, model: Model) -> tuple[Tensor, Routing]:
    """The routed experts' weighted sum plus the shared expert: [B, S, D] to [B, S, D]."""
    moe = model.moe
    assert moe is not None
    flat = x.flatten(0, -2)
    routing = route(flat, weights, moe)
    out = torch.zeros_like(flat)
    for expert in range(moe.num_experts):
        token, slot = (routing.experts == expert).nonzero(as_tuple=True)
        rows = expert_mlp(flat[token], *expert_weights(weights, expert, moe.num_experts), model)
        out = out.index_add(0, token, rows * routing.weights[token, slot, None].to(rows.dtype))
    if moe.shared_ffn_size:
        out = out + mlp(flat, weights, names.SHARED_GATE_UP, names.SHARED_DOWN, model)
    return out.view_as(x), routing


def expert_weights(weights: Weights, expert: int, num_experts: int) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """One expert's gate_up [2F, D], its bias, down [D, F], its bias, out of matrices that hold num_experts of them."""

    def part(name: str) -> Tensor | None:
        whole = weights.get(f"{names.EXPERTS}.{name}")
        return None if whole is None else whole.unflatten(0, (num_experts, -1))[expert]

    gate_up, down = part("weight"), part("down_weight")
    assert gate_up is not None and down is not None
    return gate_up, part("bias"), down, part("down_bias")


def expert_mlp(rows: Tensor, gate_up: Tensor, gate_up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None, model: Model) -> Tensor:
    """One expert on the rows [n, D] that were sent to it; n may be 0, and the weights then get a gradient of zeros."""
    return F.linear(activate(F.linear(rows, gate_up, gate_up_bias), model), down, down_bias)


def route(x: Tensor, weights: Weights, moe: Moe) -> Routing:
    """Choose k experts for each token of x [T, D]; logits and scores in float32 at least.

    softmax: Mixtral (arXiv 2401.04088, section 2.1), or Qwen3's without norm_topk. softmax_topk: gpt-oss, the softmax taken over the
    chosen logits only. sigmoid: DeepSeek-V3 (arXiv 2412.19437, equations 12-16), the bias added for the choice only.
    """
    bias = weights.get(f"{names.ROUTER}.bias")
    logits = F.linear(widened(x), widened(weights[f"{names.ROUTER}.weight"]), None if bias is None else widened(bias))
    experts, choice, groups = choose(logits, weights, moe)
    return Routing(logits, experts, chosen_weights(logits, experts, moe), choice, groups)


def choose(logits: Tensor, weights: Weights, moe: Moe) -> tuple[Tensor, Tensor, Tensor | None]:
    """``experts``, ``choice`` and ``groups`` of Routing; nothing of it has a gradient."""
    with torch.no_grad():
        if moe.score == "softmax_topk":
            return logits.topk(moe.top_k, dim=-1).indices, logits.detach(), None
        choice = _scores(logits, moe)
        if moe.selection_bias:
            choice = choice + weights[f"{names.ROUTER}.selection_bias"]
        choice, groups = _keep_best_groups(choice, moe)
        return choice.topk(moe.top_k, dim=-1).indices, choice, groups


def chosen_weights(logits: Tensor, experts: Tensor, moe: Moe) -> Tensor:
    """[T, k]: the weights of the chosen experts' outputs, from logits [T, E]."""
    if moe.score == "softmax_topk":
        return logits.gather(-1, experts).softmax(dim=-1) * moe.routed_scale
    chosen = _scores(logits, moe).gather(-1, experts)
    if moe.norm_topk:
        chosen = chosen / (chosen.sum(dim=-1, keepdim=True) + _NORM_GUARD[moe.score])
    return chosen * moe.routed_scale


def _scores(logits: Tensor, moe: Moe) -> Tensor:
    return logits.sigmoid() if moe.score == "sigmoid" else logits.softmax(dim=-1)


_NORM_GUARD = {"sigmoid": 1e-20, "softmax": 0.0}
"""Added to the sum of the chosen weights: sigmoids may all be 0 (deepseek-ai/DeepSeek-V3, modeling_deepseek.py), a softmax's best not."""


def _keep_best_groups(choice: Tensor, moe: Moe) -> tuple[Tensor, Tensor | None]:
    """Group-limited routing: only experts of the top_groups best groups stay.

    A group's score is the sum of its two best experts (DeepSeek-V3, section 2.1.2), under softmax its best one (DeepSeek-V2, section
    2.2.2).
    """
    if moe.num_groups == 1:
        return choice, None
    by_group = choice.unflatten(-1, (moe.num_groups, -1))
    groups = by_group.topk(2, dim=-1).values.sum(-1) if moe.score == "sigmoid" else by_group.amax(-1)
    best = groups.topk(moe.top_groups, dim=-1).indices
    left_out = torch.ones_like(groups, dtype=torch.bool).scatter(-1, best, False)
    return by_group.masked_fill(left_out[..., None], -math.inf).flatten(-2), groups


def smallest_margin(routing: Routing, moe: Moe) -> float:
    """How much the nearest miss was worse than the last choice, over all tokens, for experts and groups; inf if all are chosen.

    Where this is far above rounding, any correct layout chooses the same experts.
    """
    margins = [_margin(routing.choice, moe.top_k)]
    if routing.groups is not None:
        margins.append(_margin(routing.groups, moe.top_groups))
    return min(margins)


def _margin(scores: Tensor, k: int) -> float:
    if k >= scores.shape[-1] or scores.shape[0] == 0:
        return math.inf
    best = scores.detach().topk(k + 1, dim=-1).values
    return float((best[:, k - 1] - best[:, k]).min())


def tokens_per_expert(experts: Tensor, num_experts: int) -> Tensor:
    """int64 [E]: how many tokens chose each expert."""
    flat = experts.flatten()
    # not bincount, whose result has as many entries as the values say: this has E, whatever they are
    return flat.new_zeros(num_experts).scatter_add_(0, flat, torch.ones_like(flat))


def balance_statistics(routing: Routing, num_experts: int) -> Tensor:
    """[2, E]: tokens per expert, and the sum over tokens of the router's softmax. Sums over ranks are again statistics."""
    counts = tokens_per_expert(routing.experts, num_experts).to(routing.logits.dtype)
    return torch.stack((counts, routing.logits.softmax(dim=-1).sum(dim=0)))


def balance_loss(statistics: Tensor, rows: int) -> Tensor:
    """E sum_e f_e P_e (Switch Transformer, arXiv 2101.03961, equations 4-6, with f counted over all k choices).

    Args:
        statistics: [2, E] of one layer. rows: tokens that went into the sums.
    """
    counts, probabilities = statistics / rows
    return counts.shape[0] * (counts * probabilities).sum()


def updated_selection_bias(bias: Tensor, counts: Tensor, speed: float = BIAS_UPDATE_SPEED) -> Tensor:
    """The router's bias [E] after a step: up for experts below the mean load, down for those above (arXiv 2408.15664, algorithm 1).

    Args:
        counts: int64 [E], tokens per expert over the whole step and all ranks.
    """
    error = counts.to(torch.float64).mean() - counts.to(torch.float64)
    return bias + speed * error.sign().to(bias.dtype)
