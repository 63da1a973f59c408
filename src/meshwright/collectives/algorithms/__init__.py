"""Every algorithm of every collective: how to write out its steps, and what it costs in formulas.

One family per file; this is the list that the command, the tests and the price go through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

from meshwright.arithmetic import Num
from meshwright.collectives.algorithms import bruck, direct, halving_doubling, hierarchical, naive, ring, tree
from meshwright.collectives.algorithms.steplist import OPS, StepList

__all__ = ["OPS", "Algorithm", "StepList", "algorithms"]


@dataclass(frozen=True)
class Algorithm:
    """One way to run one collective. n = ranks, M = payload_bytes.

    Attributes:
        build: the steps for n ranks.
        steps: n -> steps that follow one another.
        wire_bytes: (M, n) -> bytes that the busiest rank sends.
        total_bytes: (M, n) -> bytes that all ranks send together.
        pipelined: (n, pieces) -> the steps with the payload cut finer, where that shortens large messages.
        one_root: everything passes one rank, so that a node's other network adapters stay idle.
    """

    op: str
    name: str
    build: Callable[[int], StepList]
    steps: Callable[[Num], Num]
    wire_bytes: Callable[[Num, Num], Num]
    total_bytes: Callable[[Num, Num], Num]
    pipelined: Callable[[int, int], StepList] | None = None
    one_root: bool = False


def algorithms(op: str, ranks: int, ranks_per_node: int | None = None) -> tuple[Algorithm, ...]:
    """All algorithms that can run ``op`` on a group, the simplest first.

    Those of two levels are in it where the group fills more than one node of more than one rank.
    Raises ValueError for an ``op`` that is not one of OPS.
    """
    if op not in OPS:
        raise ValueError(f"op = {op!r} is not one of {', '.join(OPS)}")
    two_levels = ranks_per_node is not None and 1 < ranks_per_node < ranks and ranks % ranks_per_node == 0
    found = _FLAT[op]
    return found + _two_levels(op, cast(int, ranks_per_node)) if two_levels else found


def _even(wire_bytes: Callable[[Num, Num], Num]) -> Callable[[Num, Num], Num]:
    """Total of an algorithm in which all ranks send the same."""
    return lambda payload_bytes, ranks: ranks * wire_bytes(payload_bytes, ranks)


def _even_algorithm(
    op: str,
    name: str,
    build: Callable[[int], StepList],
    steps: Callable[[Num], Num],
    wire_bytes: Callable[[Num, Num], Num],
) -> Algorithm:
    return Algorithm(op, name, build, steps, wire_bytes, _even(wire_bytes))


_FLAT: dict[str, tuple[Algorithm, ...]] = {
    "all_reduce": (
        Algorithm(
            "all_reduce", "naive", naive.all_reduce, naive.steps, naive.all_reduce_wire_bytes, naive.all_reduce_total_bytes, one_root=True
        ),
        _even_algorithm("all_reduce", "ring", ring.all_reduce, ring.all_reduce_steps, ring.all_reduce_wire_bytes),
        Algorithm(
            "all_reduce", "tree", tree.all_reduce, tree.all_reduce_steps, tree.all_reduce_wire_bytes, tree.total_bytes, tree.all_reduce
        ),
        Algorithm(
            "all_reduce",
            "double_tree",
            tree.double_all_reduce,
            tree.all_reduce_steps,
            tree.double_wire_bytes,
            tree.total_bytes,
            tree.double_all_reduce,
        ),
        Algorithm(
            "all_reduce",
            "halving_doubling",
            halving_doubling.all_reduce,
            halving_doubling.all_reduce_steps,
            halving_doubling.all_reduce_wire_bytes,
            halving_doubling.all_reduce_total_bytes,
        ),
        _even_algorithm("all_reduce", "pat", bruck.all_reduce, bruck.all_reduce_steps, bruck.all_reduce_wire_bytes),
        _even_algorithm("all_reduce", "one_shot", direct.one_shot_all_reduce, direct.one_step, direct.one_shot_wire_bytes),
        _even_algorithm("all_reduce", "two_shot", direct.two_shot_all_reduce, direct.two_steps, direct.two_shot_wire_bytes),
    ),
    "all_gather": (
        Algorithm("all_gather", "naive", naive.all_gather, naive.steps, naive.all_gather_wire_bytes, naive.half_total_bytes, one_root=True),
        _even_algorithm("all_gather", "ring", ring.all_gather, ring.half_steps, ring.half_wire_bytes),
        _even_algorithm("all_gather", "bruck", bruck.all_gather, bruck.half_steps, bruck.half_wire_bytes),
        _even_algorithm("all_gather", "pat", bruck.pat_all_gather, bruck.half_steps, bruck.half_wire_bytes),
        _even_algorithm("all_gather", "direct", direct.all_gather, direct.one_step, direct.exchange_wire_bytes),
    ),
    "reduce_scatter": (
        Algorithm(
            "reduce_scatter",
            "naive",
            naive.reduce_scatter,
            naive.steps,
            naive.reduce_scatter_wire_bytes,
            naive.half_total_bytes,
            one_root=True,
        ),
        _even_algorithm("reduce_scatter", "ring", ring.reduce_scatter, ring.half_steps, ring.half_wire_bytes),
        _even_algorithm("reduce_scatter", "bruck", bruck.reduce_scatter, bruck.half_steps, bruck.half_wire_bytes),
        _even_algorithm("reduce_scatter", "pat", bruck.pat_reduce_scatter, bruck.half_steps, bruck.half_wire_bytes),
        _even_algorithm("reduce_scatter", "direct", direct.reduce_scatter, direct.one_step, direct.exchange_wire_bytes),
    ),
    "all_to_all": (
        _even_algorithm("all_to_all", "direct", direct.all_to_all, direct.one_step, direct.exchange_wire_bytes),
        _even_algorithm("all_to_all", "pairwise", direct.pairwise_all_to_all, direct.pairwise_steps, direct.exchange_wire_bytes),
        _even_algorithm("all_to_all", "bruck", bruck.all_to_all, bruck.half_steps, bruck.all_to_all_wire_bytes),
    ),
}


def _two_levels(op: str, local: int) -> tuple[Algorithm, ...]:
    if op == "all_reduce":
        build = partial(hierarchical.all_reduce, ranks_per_node=local)
        steps = partial(hierarchical.all_reduce_steps, ranks_per_node=local)
        wire_bytes = partial(hierarchical.all_reduce_wire_bytes, ranks_per_node=local)
        return (_even_algorithm(op, "hierarchical", build, steps, wire_bytes),)
    if op == "all_to_all":
        by_rail = _even_algorithm(
            op,
            "rail",
            partial(hierarchical.rail_all_to_all, ranks_per_node=local),
            partial(hierarchical.rail_steps, ranks_per_node=local),
            partial(hierarchical.rail_wire_bytes, ranks_per_node=local),
        )
        by_node = Algorithm(
            op,
            "hierarchical",
            partial(hierarchical.all_to_all, ranks_per_node=local),
            partial(hierarchical.all_to_all_steps, ranks_per_node=local),
            partial(hierarchical.all_to_all_wire_bytes, ranks_per_node=local),
            partial(hierarchical.all_to_all_total_bytes, ranks_per_node=local),
        )
        return (by_rail, by_node)
    return ()
