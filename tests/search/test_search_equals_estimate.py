"""What the search says of a layout is what ``estimate(closed_form=True)`` says of it, to the last bit (DESIGN principle 2).

The search prices columns, joins them and splits the work; ``estimate`` prices one layout. Layouts are drawn from the whole
answer of a search, so that every structure that was priced can be drawn.
"""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.estimate import estimate
from meshwright.search.evaluate import Question, Segment
from meshwright.search.parallel import evaluate_all
from meshwright.search.space import Space
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.load_model import resolve_model
from meshwright.spec.rules import check
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import Training

CASES = [
    ("gpt2-xl", "a100-sxm-40g", 16, 1024, 64, "megatron-2021"),
    ("llama-3.1-8b", "h100-sxm", 24, 4096, 48, "megatron"),
    ("qwen3-30b-a3b", "h200-sxm", 32, 4096, 64, "torchtitan"),
    ("deepseek-v3", "gb200-nvl72", 288, 4096, 576, "meshwright"),
    ("gpt-oss-20b", "mi300x", 16, 8192, 32, "fsdp"),
]
DRAWN = 200
"""Layouts per case: a thousand together."""


@pytest.mark.parametrize(("model_name", "cluster_name", "gpus", "seq", "batch", "stack"), CASES, ids=[case[0] for case in CASES])
def test_search_and_estimate_agree_to_the_last_bit(model_name: str, cluster_name: str, gpus: int, seq: int, batch: int, stack: str) -> None:
    """Step seconds and peak bytes of layouts drawn from all that fit; each is legal by the rules."""
    model, cluster = resolve_model(model_name), resolve_cluster(cluster_name)
    workload = Training(seq=seq, batch=batch)
    found = evaluate_all(Question(Space(model, workload, gpus, max_mb=2, max_cp=4), cluster, STACKS[stack], 0.92))
    assert found.enumerated == found.evaluated > found.feasible > DRAWN
    for segment, at in _draw(found.segments):
        layout = segment.column.layout(int(segment.index[at]))
        check(model, workload, layout, cluster, gpus)
        alone = estimate(model, cluster, workload, layout, STACKS[stack], 0.92, closed_form=True)
        assert alone.step_s == segment.step_s[at], str(layout)
        assert alone.memory_bytes == int(segment.peak_bytes[at]), str(layout)
        assert alone.fits, str(layout)


def test_they_agree_where_pipelines_are_inside_data_parallelism() -> None:
    """Boundaries then cross other tiers from layout to layout of one column, beside the case above where all of a column are alike."""
    model, cluster, stack = resolve_model("gpt2-xl"), resolve_cluster("a100-sxm-40g"), STACKS["megatron-2021"]
    workload = Training(seq=1024, batch=64)
    space = Space(model, workload, 16, max_mb=2, max_cp=2, order="tp-cp-ep-pp-dp")
    found = evaluate_all(Question(space, cluster, stack, 0.92))
    drawn = [(segment, at) for segment, at in _draw(found.segments) if segment.column.pp > 1]
    assert len(drawn) > DRAWN / 2
    for segment, at in drawn:
        layout = segment.column.layout(int(segment.index[at]))
        assert estimate(model, cluster, workload, layout, stack, 0.92, closed_form=True).step_s == segment.step_s[at], str(layout)


def _draw(segments: list[Segment]) -> list[tuple[Segment, int]]:
    rng = np.random.default_rng(20261129)
    chosen = [segments[i] for i in rng.integers(len(segments), size=DRAWN)]
    return [(segment, int(rng.integers(len(segment.index)))) for segment in chosen]
