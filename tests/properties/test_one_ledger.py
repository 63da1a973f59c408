"""One ledger: a column of layouts and each of its layouts alone give the same numbers, to the last bit (DESIGN principle 2).

What is compared with what: the arrays that the search works on, against the plain numbers behind ``estimate`` and
``memory``. Nothing is rounded and nothing is close: every comparison is ``==``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ledger.columns import WORKLOAD, random_column
from ledger.models import SMALL
from meshwright.estimate import priced
from meshwright.ledger.build import build
from meshwright.memory import peak_bytes, stage_memory
from meshwright.priced import Priced
from meshwright.spec.cluster import Cluster
from meshwright.spec.layout import Layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.model import Model
from meshwright.spec.stack import STACKS, Stack
from meshwright.spec.workload import Training
from meshwright.step_time import step_s, step_with_parts

CLUSTERS = ("h100-sxm", "gb200-nvl72", "a100-pcie", "mi300x")
COLUMNS = 25
"""Columns per model: with 8 layouts each and five models, a thousand layouts."""


@pytest.mark.parametrize("model", SMALL, ids=lambda model: model.name)
def test_a_column_and_its_layouts_agree_to_the_last_bit(model: Model) -> None:
    """Parts of the step, bubble, peak, and every category of memory of every stage."""
    compared = 0
    for seed in range(COLUMNS):
        cluster = resolve_cluster(CLUSTERS[seed // 4 % len(CLUSTERS)])
        stack = list(STACKS.values())[seed % len(STACKS)]
        workload = replace(WORKLOAD, precision=[None, "bf16", "bf16-fp32grad", "fsdp"][seed % 4])
        column = random_column(model, seed)
        wide = _numbers(model, cluster, column, stack, workload)
        for index in range(len(column)):
            alone = _numbers(model, cluster, column.layout(index), stack, workload)
            picked = {key: np.broadcast_to(np.asarray(value), len(column))[index] for key, value in wide.items()}
            wrong = {key: (value, picked[key]) for key, value in alone.items() if not value == picked[key]}
            assert not wrong, f"{model.name} seed {seed}: {column.layout(index)}"
            compared += 1
    assert compared == 8 * COLUMNS


def _numbers(model: Model, cluster: Cluster, layout: Any, stack: Stack, workload: Training) -> dict[str, Any]:
    if isinstance(layout, Layout):
        numbers = priced(model, cluster, workload, layout, stack)  # which shares what it can with the layouts before it
    else:
        numbers = Priced(build(model, workload, layout, stack), cluster)
    seconds, parts, bubble = step_with_parts(numbers)
    np.testing.assert_array_equal(step_s(numbers), seconds)
    np.testing.assert_allclose(parts.step_s, seconds, rtol=1e-12)  # the sum of ten parts, each of a few roundings
    found = {**parts.as_dict(), "step_s": seconds, "bubble_fraction": bubble, "peak_bytes": peak_bytes(numbers)}
    for stage in range(layout.pp):
        found |= {f"stage {stage} {name}": value for name, value in stage_memory(numbers, stage).categories().items()}
    return found
