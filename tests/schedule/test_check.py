"""The checker finds every planted fault and names rank, step and action; CSV files with faults are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.schedule import Action, Kind, Schedule, build, check, print_csv, read_csv, with_communication

Lists = list[list[Action]]


def damaged(schedule: Schedule, damage: Callable[[Lists], None]) -> Schedule:
    lists = [list(actions) for actions in schedule]
    damage(lists)
    return replace(schedule, actions=tuple(map(tuple, lists)))


def swap(lists: Lists, rank: int, a: int, b: int) -> None:
    lists[rank][a], lists[rank][b] = lists[rank][b], lists[rank][a]


# 1f1b on 2 ranks, 3 micro-batches: rank 0 F0 F1 B0 F2 B1 B2, rank 1 F0 B0 F1 B1 F2 B2
FAULTS = {
    "missing backward": (lambda lists: lists[0].pop(), "rank 0, step 5", "0B2", "is missing"),
    "twice": (lambda lists: lists[1].append(lists[1][0]), "rank 1, step 6", "1F0", "is there twice"),
    "backward first": (lambda lists: swap(lists, 1, 0, 1), "rank 1, step 0", "1B0", "comes before its forward"),
    "wrong rank": (lambda lists: lists[0].insert(2, lists[1][2]), "rank 0, step 2", "1F1", "rank 1 holds"),
    "no such chunk": (lambda lists: lists[0].append(Action(Kind.FORWARD, 7, 0)), "rank 0, step 6", "7F0", "does not exist"),
    "no such micro-batch": (lambda lists: lists[0].append(Action(Kind.FORWARD, 0, 3)), "rank 0, step 6", "0F3", "does not pass"),
    "weight first": (
        lambda lists: lists[1].insert(1, Action(Kind.BACKWARD_WEIGHT, 1, 0)),
        "rank 1, step 1", "1W0", "before the input half",
    ),
    "two backwards": (
        lambda lists: lists[1].append(Action(Kind.BACKWARD_INPUT, 1, 0)),
        "rank 1, step 6", "1I0", "second backward",
    ),
    "input half alone": (
        lambda lists: lists[1].__setitem__(1, Action(Kind.BACKWARD_INPUT, 1, 0)),
        "rank 1, step 6", "1W0", "is missing",
    ),
    "pair of two forwards": (
        lambda lists: lists[0].__setitem__(0, lists[0][0]._replace(pairs_with_next=True)),
        "rank 0, step 0", "0F0", "takes a forward and a backward",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_where_it_is(fault: str) -> None:
    damage, place, action, problem = FAULTS[fault]
    with pytest.raises(InputError) as found:
        check(damaged(build("1f1b", 2, 1, 3), damage))
    assert any(m.key == place and m.value == action and problem in m.problem for m in found.value.mistakes), found.value


def test_an_order_that_cannot_run_names_the_ranks_that_wait() -> None:
    """Each rank has all its actions and forwards before backwards; but the ranks take two micro-batches in opposite orders."""
    lists = [["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]]
    with pytest.raises(InputError) as found:
        check(from_text(lists))
    assert [(m.key, m.value) for m in found.value.mistakes] == [("rank 0, step 1", "0B0"), ("rank 1, step 0", "1F1")]
    assert "the forward of micro-batch 1 on chunk 0" in found.value.mistakes[1].hint


def from_text(lists: list[list[str]]) -> Schedule:
    from meshwright.schedule.actions import parse_action

    actions = tuple(tuple(parse_action(text) for text in row) for row in lists)
    m = 1 + max(action.micro_batch for row in actions for action in row)
    return Schedule("by hand", len(actions), m, tuple(range(len(actions))), actions)


def test_blocking_sends_that_wait_for_each_other_are_a_deadlock() -> None:
    """Rank 0 blocks in the send of F1; its receive stands behind rank 1's send of B0, whose receive stands behind rank 0's F2.

    Posted as one batch with that send (nothing is computed between them) the receive of F1 is there in time.
    """
    first = "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0RECV_B0 0B0 0RECV_B1 0B1 0RECV_B2 0B2".split()
    batch = "1RECV_F0 1F0 1I0 1SEND_B0 1RECV_F1 1W0 1F1 1B1 1SEND_B1 1RECV_F2 1F2 1B2 1SEND_B2".split()
    assert check(from_text([first, batch])).messages == 6
    apart = "1RECV_F0 1F0 1I0 1SEND_B0 1W0 1RECV_F1 1F1 1B1 1SEND_B1 1RECV_F2 1F2 1B2 1SEND_B2".split()
    with pytest.raises(InputError) as found:
        check(from_text([first, apart]))
    assert {m.key: m.value for m in found.value.mistakes} == {"rank 0, step 3": "0SEND_F1", "rank 1, step 3": "1SEND_B0"}
    assert all("wait for each other" in m.problem for m in found.value.mistakes)


MESSAGE_FAULTS = {
    "send lost": (lambda lists: lists[0].pop(1), "1RECV_F0", "is not sent"),
    "receive lost": (lambda lists: lists[1].pop(0), "1F0", "before its input is received"),
    "sent too early": (lambda lists: swap(lists, 0, 0, 1), "0SEND_F0", "before what it sends is made"),
    "crossed": (lambda lists: swap(lists, 0, 1, 3), "0SEND_F1", "before what it sends is made"),
    "received in another order": (
        lambda lists: swap(lists, 1, *(lists[1].index(Action(Kind.RECV_FORWARD, 1, k)) for k in (0, 1))),
        "1RECV_F1", "not sent at this place of the order",
    ),
    "sent to nobody": (lambda lists: lists[1].append(Action(Kind.SEND_FORWARD, 1, 0)), "1SEND_F0", "no other rank needs"),
}  # fmt: skip


@pytest.mark.parametrize("fault", MESSAGE_FAULTS)
def test_a_fault_in_the_messages_is_found(fault: str) -> None:
    damage, action, problem = MESSAGE_FAULTS[fault]
    with pytest.raises(InputError) as found:
        check(damaged(with_communication(build("1f1b", 2, 1, 3)), damage))
    assert any(m.value == action and problem in m.problem for m in found.value.mistakes), found.value


BAD_FILES = {
    "not an action": ("0F0,0X0\n", "rank 0, step 1", "is not an action"),
    "a chunk on two ranks": ("0F0,0B0\n0F1,0B1\n", "rank 1, step 0", "rank 0 holds"),
    "a gap in the chunks": ("0F0,0B0\n2F0,2B0\n", "chunk", "no actions on any rank"),
    "a rank without actions": ("0F0,0B0\n,,\n", "rank 1", "has no actions"),
    "empty": ("", "", "has no actions"),
    "missing backward": ("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", "rank 0, step 3", "is missing"),
    "a pair of forwards": ("(0F0;0F1)OVERLAP_F_B,0B0,0B1\n", "rank 0, step 0", "is not an action"),
    "a slip of a micro-batch": ("0F0,0B0,0F99999999\n1F0,1B0\n", "micro-batch", "has no others before it"),
    "a cell that is a file": ("0" * 200_000 + "\n", "", "is not a table"),
    "impossible order": ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "rank 1, step 0", "never starts"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_csv_file_is_refused(tmp_path: Path, name: str) -> None:
    text, key, problem = BAD_FILES[name]
    path = tmp_path / "schedule.csv"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_csv(path)
    assert any(m.key == key and problem in m.problem and m.file == str(path) for m in refused.value.mistakes), refused.value


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for path, said in ((tmp_path / "none.csv", "does not exist"), (tmp_path / "binary.csv", "is not UTF-8"), (tmp_path, "is a folder")):
        with pytest.raises(InputError, match=said):
            read_csv(path)


def test_what_editors_leave_is_passed_over(tmp_path: Path) -> None:
    """A byte order mark, carriage returns, and empty lines at the end, which are no ranks."""
    path = tmp_path / "schedule.csv"
    path.write_bytes(b"\xef\xbb\xbf0F0,0B0\r\n1F0,1B0\r\n\r\n\r\n")
    assert [list(map(str, actions)) for actions in read_csv(path)] == [["0F0", "0B0"], ["1F0", "1B0"]]


def test_a_file_of_another_kind_does_not_list_all_its_cells(tmp_path: Path) -> None:
    path = tmp_path / "schedule.csv"
    for row in ("a\n", "0F0\n", "x,y,z\n"):
        path.write_text(1000 * row)
        with pytest.raises(InputError) as refused:
            read_csv(path)
        assert 1 <= len(refused.value.mistakes) <= 102


def test_idle_cells_and_sharding_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "schedule.csv"
    path.write_text("0UNSHARD,0F0,,0B0,0REDUCE_GRAD\n,1F0,1B0,1RESHARD\n")
    assert [list(map(str, actions)) for actions in read_csv(path)] == [["0F0", "0B0"], ["1F0", "1B0"]]


def test_two_copies_of_the_model_have_no_csv() -> None:
    with pytest.raises(InputError, match="two copies"):
        print_csv(build("dualpipe", 2, 1, 4))
