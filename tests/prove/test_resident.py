"""What ranks keep from step to step, against the ledger."""

from __future__ import annotations

import pytest

from meshwright.ledger.build import build
from meshwright.prove.resident import compare_resident, state_bytes
from meshwright.spec.layout import parse_layout
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import PRECISIONS, Training
from runtime.steps.small_models import MODELS


def ledger_of(layout: str, precision: str = "bf16"):
    parsed = parse_layout(layout)
    workload = Training(seq=16, batch=parsed.dp * parsed.mb, precision=precision)
    return build(MODELS["llama"], workload, parsed, STACKS["meshwright"], PRECISIONS[precision])


@pytest.mark.parametrize(
    ("layout", "precision", "weights", "optimizer"),
    [("dp=4x1", "bf16", 2, 12), ("dp=1x4 zero=1", "bf16", 2, 3), ("dp=1x4 zero=2", "bf16", 2, 3), ("dp=1x4 zero=3", "fsdp", 1, 2)],
)
def test_bytes_of_a_parameter_are_those_of_the_zero_paper(layout: str, precision: str, weights: float, optimizer: float) -> None:
    """Rajbhandari et al., section 5: 2 and 12 bytes of mixed precision, over four ranks; 4 and 8 where the shard is the master."""
    numel = sum(count * int(unit.numel) for unit, count in ledger_of("dp=1x1").stage(0).units())
    found = state_bytes(ledger_of(layout, precision), 0)
    # Rows that do not divide are padded: one row of a few matrices at most, 2 % of this small model.
    assert found["weights"] == pytest.approx(weights * numel, rel=0.02)
    assert found["optimizer"] == pytest.approx(optimizer * numel, rel=0.02)


def test_a_rank_that_keeps_too_much_or_a_stage_that_keeps_too_little_is_named() -> None:
    ledger = ledger_of("dp=1x4 zero=3", "fsdp")
    right = state_bytes(ledger, 0)
    measured = {rank: dict(right) for rank in range(4)}
    assert compare_resident(ledger, measured).mismatches == ()
    measured[3] = {name: count - 8 for name, count in right.items()}  # a last rank with fewer rows
    assert compare_resident(ledger, measured).mismatches == ()
    measured[2]["weights"] += 4
    assert compare_resident(ledger, measured).mismatches == ((2, "resident weights", right["weights"], right["weights"] + 4),)
    for found in measured.values():
        found["optimizer"] = right["optimizer"] // 2
    assert (3, "resident optimizer", right["optimizer"], right["optimizer"] // 2) in compare_resident(ledger, measured).mismatches
