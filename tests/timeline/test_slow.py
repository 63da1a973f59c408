"""Slow stages, ranks, links and kinds of computation: what they cost, who is told to be at fault, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.schedule import build
from meshwright.timeline import Slow, culprit, parse_slow, simulate, slow_down, uniform_costs, waiting_s


@pytest.mark.parametrize(
    ("text", "slow"),
    [
        ("stage=3 x1.3", Slow(1.3, stage=3)),
        ("rank=0 x2", Slow(2.0, rank=0)),
        ("x4 link=1-2", Slow(4.0, link=(1, 2))),
        ("rank=2 op=forward x1.5", Slow(1.5, rank=2, op="forward")),
        ("op=backward_weight x3", Slow(3.0, op="backward_weight")),
    ],
)
def test_the_text_of_a_slowness(text: str, slow: Slow) -> None:
    assert parse_slow(text) == slow


@pytest.mark.parametrize("text", ["", "x2", "stage=3", "stage=three x2", "stage=3 2", "op=gather x2", "link=1 x2", "link=1-2 stage=1 x2"])
def test_a_text_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_slow(text)
    assert "stage=S" in refused.value.mistakes[0].legal


@pytest.mark.parametrize(
    ("slow", "key", "legal"),
    [(Slow(2, stage=8), "stage", "0 to 7"), (Slow(2, rank=4), "rank", "0 to 3"), (Slow(2, link=(0, 2)), "link", "0-1, 0-3, 1-2, 2-3")],
)
def test_what_the_pipeline_does_not_have_is_refused(slow: Slow, key: str, legal: str) -> None:
    schedule = build("interleaved", 4, 2, 8)
    with pytest.raises(InputError) as refused:
        slow_down(schedule, uniform_costs(schedule), slow)
    assert refused.value.mistakes[0].key == key
    assert legal in refused.value.mistakes[0].legal


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-h2", "gpipe"])
@pytest.mark.parametrize("rank", [0, 2, 7])
def test_the_slow_rank_waits_least_and_the_others_wait_for_it(name: str, rank: int) -> None:
    """Enough micro-batches, so that the wait for the slow one outweighs filling and draining."""
    schedule = build(name, 8, 1, 64)
    costs = uniform_costs(schedule, transfer_s=0.01)
    slow = simulate(schedule, slow_down(schedule, costs, Slow(1.5, rank=rank)))
    assert culprit(slow) == rank
    total = sum(waiting_s(slow).values())
    assert total.argmin() == rank
    if name == "1f1b":  # the ranks in front wait for gradients, those behind for activations
        assert (waiting_s(slow)["downstream"][:rank] > waiting_s(slow)["upstream"][:rank]).all()
        assert (waiting_s(slow)["upstream"][rank + 1 :] > waiting_s(slow)["downstream"][rank + 1 :]).all()


def test_a_slow_rank_slows_all_its_chunks_and_a_slow_stage_all_its_copies() -> None:
    schedule = build("interleaved", 4, 2, 8)
    rank = slow_down(schedule, uniform_costs(schedule), Slow(2.0, rank=1))
    assert rank.forward_s.tolist() == [1, 2, 1, 1, 1, 2, 1, 1]
    copies = build("dualpipe", 4, 1, 8)
    stage = slow_down(copies, uniform_costs(copies), Slow(2.0, stage=1))
    assert stage.backward_weight_s.tolist() == [1, 2, 1, 1, 1, 2, 1, 1]


def test_a_slow_kind_of_computation() -> None:
    schedule = build("1f1b", 2, 1, 4)
    costs = slow_down(schedule, uniform_costs(schedule), Slow(2.0, op="backward"))
    assert (costs.forward_s.tolist(), costs.backward_input_s.tolist(), costs.backward_weight_s.tolist()) == ([1, 1], [2, 2], [2, 2])
    assert simulate(schedule, costs).span_s == (4 + 1) * (1 + 4)


def test_a_slow_link_delays_both_directions_of_that_boundary_only() -> None:
    schedule = build("interleaved", 4, 2, 8)
    costs = slow_down(schedule, uniform_costs(schedule, transfer_s=1.0), Slow(3.0, link=(0, 3)))
    assert costs.forward_transfer_s.tolist()[:7] == [1, 1, 1, 3, 1, 1, 1]  # chunk 3 on rank 3 to chunk 4 on rank 0
    assert costs.backward_transfer_s.tolist()[1:] == [1, 1, 1, 3, 1, 1, 1]  # and back
    with_link = simulate(schedule, costs)
    assert np.argmax(waiting_s(with_link)["transfer"]) in (0, 3)


def test_durations_per_micro_batch_are_slowed_too() -> None:
    from dataclasses import replace

    schedule = build("1f1b", 2, 1, 3)
    costs = replace(uniform_costs(schedule), forward_s=np.arange(6.0).reshape(2, 3))
    assert slow_down(schedule, costs, Slow(2.0, rank=1)).forward_s.tolist() == [[0, 1, 2], [6, 8, 10]]
