"""Our lists against torch.distributed.pipelining's own, where it has the schedule, and against its reader of CSV files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright.schedule import Schedule, build, print_csv, read_csv, with_communication, without_communication, write_csv

pytest.importorskip("torch")
from torch.distributed.pipelining import schedules as torch_schedules
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

COMPUTE = {"F", "B", "I", "W"}


def ours(schedule: Schedule) -> list[list[str]]:
    return [[str(action) for action in actions] for actions in schedule]


def flat(lists: list[list[Any]]) -> list[list[str]]:
    """Torch's actions without idle slots and without what belongs to parameter sharding; pairs opened."""
    opened = [[one for action in actions if action is not None for one in action.sub_actions or (action,)] for actions in lists]
    return [[str(action) for action in actions if action.computation_type.value in COMPUTE] for actions in opened]


SIZES = [(1, 3), (2, 4), (4, 8), (5, 11), (8, 32)]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe(p: int, m: int) -> None:
    assert ours(build("gpipe", p, 1, m)) == flat(get_schedule_ops("GPipe", p, m))


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_1f1b(p: int, m: int) -> None:
    """The order that torch prints for the last rank counts its forwards from 1 (F1 B0 F2 B1 ...); what it runs starts at 0."""
    *before, last = flat(get_schedule_ops("1F1B", p, m))
    stage = p - 1
    assert last == [cell for k in range(m) for cell in (f"{stage}F{k + 1}", f"{stage}B{k}")]
    last = [cell for k in range(m) for cell in (f"{stage}F{k}", f"{stage}B{k}")]
    assert ours(build("1f1b", p, 1, m)) == [*before, last]


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 16), (4, 3, 8), (4, 4, 4), (8, 2, 24), (3, 5, 9)])
def test_interleaved(p: int, v: int, m: int) -> None:
    assert ours(build("interleaved", p, v, m)) == flat(get_schedule_ops("Interleaved1F1B", p, m, v))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 6), (4, 3), (4, 8), (4, 20), (8, 20)])
def test_zb_v(p: int, m: int) -> None:
    assert ours(build("zb-v", p, 2, m)) == flat(get_schedule_ops("ZBVZeroBubble", p, m, 2))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 6), (4, 8), (4, 13), (8, 20)])
def test_dualpipe_v_with_its_pairs(p: int, m: int) -> None:
    schedule, theirs = build("dualpipe-v", p, 2, m), get_schedule_ops("DualPipeV", p, m, 2)
    assert ours(schedule) == flat(theirs)
    pairs = [[str(action) for action in actions if action.sub_actions is not None] for actions in theirs]
    cells = [line.split(",") for line in print_csv(schedule).splitlines()]
    assert [[cell for cell in row if cell.startswith("(")] for row in cells] == pairs


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 4), (4, 12), (8, 32)])
def test_zb_h1_is_torchs_interleaved_zero_bubble_with_one_chunk(p: int, m: int) -> None:
    """Its class refuses one chunk per rank; the function that makes the order takes it."""
    for rank, actions in enumerate(ours(build("zb-h1", p, 1, m))):
        warm_up = min(p - 1 - rank, m)
        theirs = torch_schedules._get_1f1b_rank_ops(
            1, p, warm_up, m - warm_up, warm_up, rank, lambda _, rank=rank: rank, lambda _, rank=rank: rank, rank, True
        )
        assert actions == flat([theirs])[0]


CASES = [("gpipe", 4, 1, 6), ("1f1b", 4, 1, 8), ("interleaved", 4, 2, 8), ("zb-h2", 4, 1, 9), ("zb-v", 4, 2, 8), ("dualpipe-v", 3, 2, 7)]


@pytest.mark.parametrize(("name", "p", "v", "m"), CASES)
@pytest.mark.parametrize("messages", [False, True], ids=["computations", "messages"])
def test_torch_reads_our_csv(tmp_path: Path, name: str, p: int, v: int, m: int, messages: bool) -> None:
    schedule = build(name, p, v, m)
    schedule = with_communication(schedule) if messages else schedule
    write_csv(schedule, tmp_path / "schedule.csv")
    for line, row in zip((tmp_path / "schedule.csv").read_text().splitlines(), ours(schedule), strict=True):
        parsed = [torch_schedules._Action.from_str(cell) for cell in line.split(",")]
        assert [str(one) for action in parsed for one in action.sub_actions or (action,)] == row
    again = read_csv(tmp_path / "schedule.csv")
    assert again.actions == schedule.actions
    assert again.rank_of_chunk == schedule.rank_of_chunk


# torch lowers to messages only schedules with several chunks per rank
TORCH_CSV = [("GPipe", 3, 1, 4), ("Interleaved1F1B", 4, 2, 8), ("InterleavedZeroBubble", 2, 2, 4), ("ZBVZeroBubble", 3, 2, 6)]


@pytest.mark.parametrize(
    ("theirs", "p", "v", "m", "with_comms"),
    [(*case, False) for case in TORCH_CSV] + [(*case, True) for case in TORCH_CSV if case[2] > 1],
)
def test_we_read_torchs_csv(tmp_path: Path, theirs: str, p: int, v: int, m: int, with_comms: bool) -> None:
    rows = get_schedule_ops(theirs, p, m, v if v > 1 else None, with_comms=with_comms)
    path = tmp_path / "torch.csv"
    path.write_text("\n".join(",".join("" if action is None else str(action) for action in row) for row in rows) + "\n")
    schedule = read_csv(path)
    assert (schedule.num_ranks, schedule.chunks_per_rank, schedule.num_micro_batches) == (p, v, m)
    assert flat(rows) == ours(without_communication(schedule))


@pytest.mark.parametrize(("name", "p", "v", "m"), [case for case in CASES if case[0] != "dualpipe-v"])
def test_torchs_simulator_finds_no_deadlock_in_our_messages(name: str, p: int, v: int, m: int) -> None:
    """It raises on the pairs of DualPipe-V, which it does not know."""
    schedule = with_communication(build(name, p, v, m))
    actions = {rank: [torch_schedules._Action.from_str(str(action)) for action in row] for rank, row in enumerate(schedule)}
    simulated = torch_schedules._simulate_comms_compute(actions, lambda stage: schedule.rank_of_chunk[stage], schedule.num_stages)
    done = sum(action is not None for row in simulated.values() for action in row)
    assert done == sum(map(len, schedule.actions))
