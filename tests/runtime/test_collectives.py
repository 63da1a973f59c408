"""Every algorithm, carried out over point-to-point messages on gloo, gives what torch's collective gives, with the formula's bytes."""

import pytest
import torch

from meshwright.collectives.algorithms import OPS, algorithms
from meshwright.runtime.collectives import Execution, Steps, execute
from meshwright.runtime.launch import run_ranks

pytestmark = pytest.mark.dist

CHUNK_ELEMENTS = 6
WORLDS = [(1, None), (2, None), (3, None), (4, 2), (5, None), (6, 3), (8, 2), (8, 4)]


def all_of_them(ranks: int, ranks_per_node: int | None, dtype: torch.dtype) -> list[Execution]:
    """Runs on each rank: every algorithm of every op, one after the other."""
    return [
        execute(Steps(op, steps.chunks, steps.rows()), CHUNK_ELEMENTS, dtype, seed)
        for op in OPS
        for seed, steps in enumerate(algorithm.build(ranks) for algorithm in algorithms(op, ranks, ranks_per_node))
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=["float64", "int64"])
@pytest.mark.parametrize(("ranks", "ranks_per_node"), WORLDS)
def test_equal_to_torch_in_numbers_and_to_the_formula_in_bytes(ranks, ranks_per_node, dtype):
    results = run_ranks(all_of_them, ranks, (ranks, ranks_per_node, dtype))
    known = [(op, a) for op in OPS for a in algorithms(op, ranks, ranks_per_node)]
    for (op, algorithm), executions in zip(known, zip(*results, strict=True), strict=True):
        name = f"{op} {algorithm.name}"
        assert all(e.equal for e in executions), (name, executions)
        if dtype is torch.int64 or op in ("all_gather", "all_to_all"):
            assert {e.max_error for e in executions} == {0.0}, name
        steps = algorithm.build(ranks)
        payload = CHUNK_ELEMENTS * 8 * (steps.chunks // ranks if op == "all_to_all" else steps.chunks)
        assert [e.sent_bytes for e in executions] == list(steps.sent_bytes(payload)), name
        # float formulas of whole numbers below 2^20: off by rounding only
        assert max(e.sent_bytes for e in executions) == pytest.approx(algorithm.wire_bytes(payload, ranks), rel=1e-12), name
        assert sum(e.sent_bytes for e in executions) == pytest.approx(algorithm.total_bytes(payload, ranks), rel=1e-12), name


def with_a_lost_message() -> list[bool]:
    """A ring whose last step is missing: on each rank, is the result still said to be right?"""
    steps = algorithms("all_reduce", 4)[1].build(4)
    rows = [row for row in steps.rows() if row[0] < steps.num_steps - 1]
    added_twice = [*steps.rows(), *((steps.num_steps, rank, (rank + 1) % 4, 0, True) for rank in range(4))]
    return [execute(Steps("all_reduce", 4, r), CHUNK_ELEMENTS, torch.float64, 0).equal for r in (rows, added_twice)]


def test_a_wrong_list_is_not_equal():
    for missing, twice in run_ranks(with_a_lost_message, 4):
        assert not missing
        assert not twice
