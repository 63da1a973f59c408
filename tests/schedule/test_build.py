"""Every schedule for many sizes: complete, free of deadlock, with the in-flight counts that its formula says; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.schedule import PassTimes, Schedule, build, check, schedule_mistakes
from meshwright.schedule.actions import Action, Kind
from meshwright.schedule.in_flight import count_in_flight, in_flight_chunks
from meshwright.spec.layout import SCHEDULES

CHUNKS = {"interleaved": (2, 3, 4), "zb-v": (2,), "dualpipe-v": (2,)}


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    name = draw(st.sampled_from(SCHEDULES))
    p, m = draw(st.integers(1, 9)), draw(st.integers(1, 40))
    v = draw(st.sampled_from(CHUNKS.get(name, (1,))))
    if name == "interleaved":
        m = p * (1 + m % 4)
    if name == "dualpipe":
        p, m = 2 * (1 + p // 2), 4 * (1 + p // 2) + 2 * (m // 2)
    if name == "dualpipe-v":
        m += 2 * p
    return build(name, p, v, m)


@given(schedules())
def test_every_list_is_complete_and_cannot_deadlock(schedule: Schedule) -> None:
    checked = check(schedule)
    per_micro_batch = 2 if schedule.name in ("naive", "gpipe", "1f1b", "interleaved") else None
    if per_micro_batch:
        assert checked.computations == schedule.num_micro_batches * schedule.num_chunks * per_micro_batch
    # every micro-batch crosses each boundary between two ranks once forward and once backward
    boundaries = sum(
        a != b for a, b in zip(schedule.rank_of_chunk, schedule.rank_of_chunk[1 : schedule.num_stages], strict=False)
    )  # fmt: skip
    assert checked.messages == 2 * boundaries * schedule.num_micro_batches


@given(schedules())
def test_in_flight_formulas_count_the_lists(schedule: Schedule) -> None:
    p, m = schedule.num_ranks, schedule.num_micro_batches
    formula = in_flight_chunks(schedule.name, np.arange(p), p, schedule.chunks_per_rank, m)
    counted = count_in_flight(schedule)
    if schedule.name in ("zb-1p", "zb-2p"):  # the limit that they are built under, not what they happen to use
        assert (counted <= formula).all()
    else:
        assert counted.tolist() == np.broadcast_to(formula, p).tolist()


@pytest.mark.parametrize("name", SCHEDULES)
def test_in_flight_of_an_array_of_layouts_is_that_of_each(name: str) -> None:
    rank, p, m = np.array([0, 1, 3, 2]), np.array([4, 2, 4, 8]), np.array([8, 16, 8, 64])
    v = CHUNKS.get(name, (1,))[0]
    one_by_one = [in_flight_chunks(name, int(r), int(q), v, int(k)) for r, q, k in zip(rank, p, m, strict=True)]
    assert in_flight_chunks(name, rank, p, v, m).tolist() == [int(one) for one in one_by_one]


REFUSED = [
    ("interleaved", 4, 2, 6, "micro-batches", "not divisible by pp = 4"),
    ("dualpipe", 3, 1, 8, "pp", "is odd"),
    ("dualpipe", 4, 1, 9, "micro-batches", "is odd"),
    ("dualpipe", 4, 1, 6, "micro-batches", "too few"),
    ("dualpipe-v", 4, 2, 7, "micro-batches", "too few"),
    ("1f1b", 4, 2, 8, "virtual stages", "does not fit 1f1b"),
    ("zb-v", 4, 1, 8, "virtual stages", "does not fit zb-v"),
    ("1f1b", 0, 1, 8, "pp", ""),
    ("gpipe", 2, 1, 0, "micro-batches", ""),
    ("chimera", 2, 1, 4, "pp", "is not a schedule"),
]


@pytest.mark.parametrize(("name", "p", "v", "m", "key", "problem"), REFUSED)
def test_sizes_that_a_schedule_cannot_take_are_refused(name: str, p: int, v: int, m: int, key: str, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        build(name, p, v, m)
    assert any(mistake.key == key and problem in mistake.problem for mistake in refused.value.mistakes)
    assert all(mistake.legal for mistake in refused.value.mistakes)
    assert schedule_mistakes(name, p, v, m) == list(refused.value.mistakes)


def test_sixty_four_ranks_and_512_micro_batches() -> None:
    assert sum(map(len, build("interleaved", 64, 4, 512))) == 64 * 4 * 512 * 2


def test_zb_2p_puts_weight_halves_off_as_far_as_its_memory_lets_it() -> None:
    """The weight half needs a third of the activations: more of them may wait than where it needs all."""
    full, third = (build("zb-2p", 4, 1, 24, PassTimes(1.0, 1.0, 0.5, weight_share=share)) for share in (1.0, 1 / 3))
    waiting = [most_waiting(schedule.actions[-1]) for schedule in (full, third)]
    assert waiting[0] < waiting[1] <= 3 * 8


def most_waiting(actions: tuple[Action, ...]) -> int:
    """The most weight halves whose input half is done and that are not."""
    steps = [{Kind.BACKWARD_INPUT: 1, Kind.BACKWARD_WEIGHT: -1}.get(action.kind, 0) for action in actions]
    return int(np.cumsum(steps).max())
