"""The symbolic check finds what is wrong with a step list; a check that cannot fail would prove nothing."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.collectives.algorithms import direct, ring
from meshwright.collectives.algorithms.steplist import StepList, from_parts, mirrored
from meshwright.collectives.verify import verify


def without(steps: StepList, row: int) -> StepList:
    columns = {name: np.delete(getattr(steps, name), row) for name in ("step", "sender", "receiver", "chunk", "reduce")}
    return replace(steps, **columns)


def with_row(steps: StepList, row: int, **values) -> StepList:
    columns = {}
    for name, value in values.items():
        columns[name] = getattr(steps, name).copy()
        columns[name][row] = value
    return replace(steps, **columns)


@pytest.mark.parametrize("build", [ring.all_reduce, ring.all_gather, ring.reduce_scatter, direct.pairwise_all_to_all])
def test_every_single_lost_transfer_is_found(build):
    steps = build(5)
    assert verify(steps) == []
    for row in range(len(steps)):
        assert verify(without(steps, row)), f"nobody misses transfer {row}"


def test_a_repeated_sum_counts_twice():
    once = direct.one_shot_all_reduce(3)
    again = from_parts("all_reduce", 3, 1, [[(once.sender, once.receiver, once.chunk, True)], [(0, 1, 0, True)]])
    assert [str(fault) for fault in verify(again)] == [
        "in step 1, rank 1, chunk 0: counts a contribution twice",
        "at the end, rank 1, chunk 0: has too much of rank 0, 1, 2",
    ]


def test_adding_where_one_should_overwrite_is_found():
    steps = ring.all_reduce(4)
    row = int(np.flatnonzero(~steps.reduce)[0])
    assert any("twice" in fault.what for fault in verify(with_row(steps, row, reduce=True)))


def test_wrong_chunk_says_what_is_missing():
    steps = ring.all_gather(3)
    faults = verify(with_row(steps, 0, chunk=1))
    assert "at the end, rank 1, chunk 0: lacks rank 0" in map(str, faults)


def test_two_overwriting_arrivals_in_one_place_are_refused():
    steps = from_parts("all_gather", 3, 3, [[([0, 1], 2, 0, False)]])
    assert sum("overwritten" in fault.what for fault in verify(steps)) == 2


def test_sending_to_oneself_is_refused():
    assert any("itself" in fault.what for fault in verify(from_parts("all_gather", 2, 2, [[(0, 0, 0, False)]])))


def test_mirroring_twice_gives_the_same_list():
    steps = ring.all_gather(6)
    twice = mirrored(mirrored(steps))
    for name in ("step", "sender", "receiver", "chunk", "reduce"):
        assert (getattr(twice, name) == getattr(steps, name)).all()
    with pytest.raises(KeyError):
        mirrored(ring.all_reduce(6))
