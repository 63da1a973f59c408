"""Which experts tokens choose: balanced, by a load histogram, within a few groups; as a sample, and in closed form.

E experts, k of them per token. With group-limited routing (DeepSeek-V3, arXiv 2412.19437, section 2.1.2: node-limited) the experts
form G groups, and a token's k experts lie in at most M of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError, Mistake
from meshwright.spec.model import Moe

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LOAD_SUM_ERROR = 1e-6
"""How far the shares of a histogram may be from 1 together; counts are divided by their sum first."""


@dataclass(frozen=True)
class Routing:
    """Choices of the tokens of every rank: ``chosen`` is int[ranks, tokens, k], the experts of each token, all different."""

    chosen: Ints
    num_experts: int

    @property
    def loads(self) -> Floats:
        """float[E]: each expert's share of all choices."""
        counts = np.bincount(self.chosen.ravel(), minlength=self.num_experts)
        found: Floats = counts / counts.sum()
        return found


def shares(loads: Sequence[float], moe: Moe, file: str = "load") -> Floats:
    """float[E]: a histogram of loads as shares that sum to 1.

    Raises InputError: another number of experts, a negative load, or more than one choice per token for one expert.
    """
    values = np.asarray(loads, dtype=np.float64)
    mistakes = []
    if values.shape != (moe.num_experts,):
        mistakes.append(Mistake(file, "loads", len(loads), f"{moe.num_experts} numbers, one for each expert"))
    elif not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
        worst = next((i for i, v in enumerate(values) if not np.isfinite(v) or v < 0), 0)
        mistakes.append(Mistake(file, f"loads[{worst}]", float(values[worst]), "a number of 0 or more, and not all of them 0"))
    else:
        values = values / values.sum()
        heaviest = int(values.argmax())
        if values[heaviest] > (1 + LOAD_SUM_ERROR) / moe.top_k:
            legal = f"at most 1/{moe.top_k} of all choices: a token chooses an expert once"
            mistakes.append(Mistake(file, f"loads[{heaviest}]", f"{values[heaviest]:.4g} of all", legal))
    if mistakes:
        raise InputError(mistakes)
    return values


ROWS = 8192
"""Tokens that are drawn at once: their chances fit the cache."""


def sample(moe: Moe, ranks: int, tokens: int, loads: Floats | None = None, limited: bool = True, seed: int = 0) -> Routing:
    """Choices of ``tokens`` tokens on each of ``ranks`` ranks, the same distribution on all.

    Args:
        loads: each expert's share of all choices; None for balanced. Met in expectation, exactly without groups, and with
            groups as far as k choices of M groups allow.
        limited: whether the model's group limit holds; False to see what it saves.
    """
    rng = np.random.default_rng(seed)
    grouped = limited and moe.num_groups > moe.top_groups
    experts = np.full(moe.num_experts, 1 / moe.num_experts) if loads is None else loads
    parts = []
    for start in range(0, ranks * tokens, ROWS):
        count = min(ROWS, ranks * tokens - start)
        if grouped:
            chance = _within_groups(rng, moe, experts, count)
        else:
            chance = np.broadcast_to(moe.top_k * experts, (count, moe.num_experts))
        parts.append(_systematic(rng, chance, moe.top_k))
    return Routing(np.concatenate(parts).reshape(ranks, tokens, moe.top_k), moe.num_experts)


def _within_groups(rng: np.random.Generator, moe: Moe, experts: Floats, count: int) -> Floats:
    """float[count, E]: chances of the experts once each token has its M groups; k in each row, none above 1."""
    groups = experts.reshape(moe.num_groups, -1).sum(axis=1)
    weight = _capped(moe.top_groups * groups[None, :], moe.top_groups)
    picked = _systematic(rng, np.broadcast_to(weight, (count, moe.num_groups)), moe.top_groups)
    mask = np.zeros((count, moe.num_groups), dtype=bool)
    np.put_along_axis(mask, picked, True, axis=1)
    inside = np.repeat(mask, moe.num_experts // moe.num_groups, axis=1) * np.maximum(experts, 1e-12)  # so that k of them can be chosen
    return _capped(inside * (moe.top_k / inside.sum(axis=1, keepdims=True)), moe.top_k)


def _capped(chance: Floats, total: int) -> Floats:
    """Rows that sum to ``total`` with nothing above 1: what is above goes to the others of the row in proportion."""
    while True:
        full = chance >= 1
        rest = np.where(full, 0.0, chance)
        wanted = total - full.sum(axis=1, keepdims=True)
        scaled = np.where(full, 1.0, rest * (wanted / np.maximum(rest.sum(axis=1, keepdims=True), 1e-300)))
        if not (scaled > 1 + 1e-9).any():
            return np.minimum(scaled, 1.0)
        chance = scaled


def _systematic(rng: np.random.Generator, chance: Floats, k: int) -> Ints:
    """int[count, k]: exactly k different columns of each row, each with its chance (rows sum to k, no chance above 1).

    Systematic sampling in random order (Madow, "On the theory of systematic sampling II", Ann. Math. Stat. 20 (1949)): the
    columns laid end to end, in another order for each row, are hit by a comb of k teeth one apart.
    """
    count, columns = chance.shape
    order = rng.random((count, columns), dtype=np.float32).argsort(axis=1)
    ends = np.take_along_axis(chance, order, axis=1).cumsum(axis=1)
    ends *= k / ends[:, -1:]
    ends[:, -1] = k
    teeth = np.ceil(ends - rng.random((count, 1)))  # how many of the comb's teeth lie before the end of each column
    hit = np.diff(teeth, axis=1, prepend=0.0) > 0
    odd = hit.sum(axis=1) != k  # two teeth in a column of chance 1, by rounding
    if odd.any():
        chosen = np.zeros((count, k), dtype=np.int64)
        chosen[odd] = _systematic(rng, chance[odd], k)
        chosen[~odd] = order[~odd][hit[~odd]].reshape(-1, k)
        return chosen
    return order[hit].reshape(count, k).astype(np.int64)


def expected_units(moe: Moe, units: int, limited: bool = True) -> float:
    """Of ``units`` equal parts of the experts (ranks or nodes), how many a token's choices lie in, on average and balanced.

    Parts follow the experts' order. Without a limit: units (1 - C(E - E/units, k) / C(E, k)), hypergeometric. Where parts
    neither divide the groups nor are divided by them, the limit is left out: no less is sent than said.
    """
    E, k, G, M = moe.num_experts, moe.top_k, moe.num_groups, moe.top_groups
    part = E // units
    if not limited or M >= G or (G % units and units % G):
        return units * (1 - comb(E - part, k) / comb(E, k))
    group = E // G
    if units >= G:  # a part lies in one group, which is among the token's with chance M/G
        return units * (M / G) * (1 - comb(M * group - part, k) / comb(M * group, k))
    whole = G // units  # groups of a part; j of them among the token's M
    missed = 0.0
    for j in range(max(0, M - (G - whole)), min(whole, M) + 1):
        chance = comb(whole, j) * comb(G - whole, M - j) / comb(G, M)
        missed += chance * comb((M - j) * group, k) / comb(M * group, k)
    return units * (1 - missed)
