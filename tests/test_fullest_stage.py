"""The peak that estimate and search look at is that of the fullest of all stages."""

from __future__ import annotations

import pytest

from meshwright.estimate import priced
from meshwright.memory import peak_bytes, stage_memory
from meshwright.search.space import SEARCHED_SCHEDULES
from meshwright.spec.layout import TWO_CHUNK_SCHEDULES, Layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.load_model import resolve_model
from meshwright.spec.workload import Training


@pytest.mark.parametrize("schedule", SEARCHED_SCHEDULES)
@pytest.mark.parametrize("m", [8, 16, 40])
@pytest.mark.parametrize("model_name", ["llama-3.1-8b", "gpt2-xl"])
def test_no_stage_is_fuller_than_the_one_looked_at(schedule: str, m: int, model_name: str) -> None:
    """All stages of pp=4 and 8, with few and with many micro-batches."""
    model, cluster = resolve_model(model_name), resolve_cluster("h100-sxm")
    for pp in (4, 8) if model.num_layers % 16 == 0 else (4,):
        v = 2 if schedule in ("interleaved", *TWO_CHUNK_SCHEDULES) else 1
        layout = Layout(pp=pp, schedule=schedule, virtual_stages=v, dp_shard=2, zero=1)
        numbers = priced(model, cluster, Training(seq=1024, batch=2 * m), layout)
        stages = [float(stage_memory(numbers, index).peak_bytes) for index in range(pp)]
        assert float(peak_bytes(numbers)) == max(stages), stages
