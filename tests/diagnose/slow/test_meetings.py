"""Which collectives of different ranks are the same one: by number, by place, by the moment they end, with clocks that do not agree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.diagnose.slow.meetings import Meeting, meetings_of
from meshwright.recording.events import Header
from meshwright.recording.read import Recording
from meshwright.recording.recorded_trace import trace_of_recording
from meshwright.recording.trace import Call, Communication, Trace

EMPTY = trace_of_recording(Recording(header=Header(world_size=1, rank=0), events=()))


def trace(rank: int, *spans: tuple[str, float, float], origin_s: float = 0.0, **call: object) -> Trace:
    """(op, start, end) of each collective, all with the same further attributes of their call."""
    found = tuple(
        Communication(
            start_s=start, end_s=end, op=op, library="NCCL", kernel=f"nccl_{op}", stream="stream 1", call=Call(op=op, **call),  # type: ignore[arg-type]
        )
        for op, start, end in spans
    )  # fmt: skip
    return replace(EMPTY, rank=rank, communications=found, origin_s=origin_s)


def pairs(found: tuple[Meeting, ...]) -> list[tuple[str, tuple[int, ...], int]]:
    return [(meeting.op, tuple(sorted(meeting.duration_s)), meeting.late_rank) for meeting in found]


def test_transfer_is_the_shortest_duration_and_the_rest_is_waiting() -> None:
    (found,) = meetings_of([trace(0, ("all_reduce", 1.0, 5.0)), trace(1, ("all_reduce", 4.0, 5.0)), trace(2, ("all_reduce", 2.0, 5.0))])
    assert (found.transfer_s, found.late_rank, found.waited_s) == (1.0, 1, 5.0)
    assert found.waiting_s == {0: 3.0, 1: 0.0, 2: 2.0}


def test_clocks_need_not_agree() -> None:
    """Ranks of two hosts, an hour apart; each sees its own start and end."""
    near, far = trace(0, ("all_reduce", 1.0, 5.0), ranks=(0, 1)), trace(1, ("all_reduce", 4.0, 5.0), ranks=(0, 1), origin_s=3600.0)
    (found,) = meetings_of([near, far])
    assert (found.transfer_s, found.late_rank) == (1.0, 1)


def test_of_equal_durations_the_last_to_begin_is_late() -> None:
    starts = {0: 1.0, 1: 1.1, 2: 1.05}
    (found,) = meetings_of([trace(rank, ("all_reduce", start, start + 1.0), ranks=(0, 1, 2)) for rank, start in starts.items()])
    assert found.late_rank == 1


def test_numbers_match_collectives_where_one_trace_begins_later() -> None:
    ops = [("all_reduce", float(place), place + 0.5) for place in range(6)]
    calls = [Call(op="all_reduce", group="g", ranks=(0, 1), seq=7 + place) for place in range(6)]
    unnumbered = trace(0, *ops)
    numbered = [replace(each, call=call) for each, call in zip(unnumbered.communications, calls, strict=True)]
    whole = replace(unnumbered, communications=tuple(numbered))
    late = replace(whole, rank=1, communications=whole.communications[2:])
    assert [meeting.start_s[0] for meeting in meetings_of([whole, late])] == [2.0, 3.0, 4.0, 5.0]


def test_without_numbers_the_order_of_ops_tells_where_a_later_trace_begins() -> None:
    ops = ["all_reduce", "all_gather", "all_gather", "reduce_scatter", "all_reduce", "all_gather", "reduce_scatter"]
    spans = [(op, float(place), place + 0.5) for place, op in enumerate(ops)]
    found = meetings_of([trace(0, *spans, group="g", ranks=(0, 1)), trace(1, *spans[2:], group="g", ranks=(0, 1))])
    assert [(meeting.op, meeting.start_s[0], meeting.start_s[1]) for meeting in found] == [(op, a, a) for op, a, _ in spans[2:]]


def test_without_names_ranks_that_end_together_are_a_group() -> None:
    def ends(*moments: float) -> list[tuple[str, float, float]]:
        return [("all_reduce", moment - 0.3, moment) for moment in moments]

    left, right = ends(1.0, 2.0, 3.0), ends(1.4, 2.5, 3.4)
    found = meetings_of([trace(0, *left), trace(1, *right), trace(2, *left), trace(3, *right)])
    assert {tuple(sorted(meeting.duration_s)) for meeting in found} == {(0, 2), (1, 3)}


def test_both_ends_of_a_message_meet() -> None:
    sender = trace(0, ("send", 0.0, 5.0), peer=1, group="pp")
    receiver = trace(1, ("recv", 4.0, 5.0), peer=0, group="pp")
    (found,) = meetings_of([sender, receiver])
    assert (found.op, found.ranks, found.late_rank, found.waiting_s[0]) == ("send", (0, 1), 1, 4.0)


def test_one_end_of_a_message_meets_nobody() -> None:
    assert meetings_of([trace(0, ("send", 0.0, 5.0)), trace(1, ("recv", 4.0, 5.0))]) == ()


def test_a_group_of_which_a_rank_is_missing_is_not_whole() -> None:
    found = meetings_of([trace(rank, ("all_reduce", 1.0, 2.0), ranks=(0, 1, 2), group="g") for rank in (0, 1)])
    assert [meeting.whole for meeting in found] == [False]


@pytest.mark.parametrize("count", [0, 1])
def test_one_rank_meets_nobody(count: int) -> None:
    assert meetings_of([trace(0, ("all_reduce", 1.0, 2.0))][:count]) == ()
