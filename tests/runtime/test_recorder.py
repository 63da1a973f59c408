"""What the recorder says of each collective, against arguments that we know; FSDP2's and the functional ones included."""

import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.fsdp import fully_shard

from meshwright.recording.crosscheck import cross_check
from meshwright.recording.events import Event, Group
from meshwright.recording.read import Recording, read_recordings
from meshwright.recording.write import RecordingWriter
from meshwright.runtime.failures import RanksFailed
from meshwright.runtime.launch import run_ranks
from meshwright.runtime.recorder import Collected, Recorder, header
from meshwright.runtime.scope import at, back_at, in_module, origin

pytestmark = pytest.mark.dist

PAIR = Group(name="pair.0", axis="pair", ranks=(0, 1))


def recorder() -> tuple[Recorder, Collected]:
    collected = Collected()
    return Recorder(collected, {dist.group.WORLD.group_name: PAIR}), collected


def every_collective() -> list[Event]:
    recording, collected = recorder()
    rank = dist.get_rank()
    x = torch.ones(4, 6, dtype=torch.float64)
    with recording, at(step=1, micro_batch=2, chunk=0, phase="forward"), in_module("layers.3"), in_module("mlp.down"):
        dist.all_reduce(x)
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        dist.all_gather_single(torch.empty(8, 6, dtype=torch.float64), x)
        dist.reduce_scatter_single(torch.empty(2, 6, dtype=torch.float64), x)
        splits = [1, 3] if rank == 0 else [3, 1]
        received = torch.empty(4, 6, dtype=torch.float64)
        dist.all_to_all_single(received, x, [1, 3] if rank == 0 else [3, 1], splits)
        dist.all_to_all_single(torch.empty_like(x), x)
        dist.broadcast(x.bfloat16(), 1)
        dist.all_reduce(torch.tensor(3), async_op=True).wait()
        if rank == 0:
            dist.send(x[:2], 1, tag=5)
            dist.recv(torch.empty(3), 1)
        else:
            dist.recv(torch.empty(2, 6, dtype=torch.float64), 0, tag=5)
            dist.send(torch.ones(3), 0)
        functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
        functional.wait_tensor(functional.all_gather_single(x, 0, dist.group.WORLD))
        functional.wait_tensor(functional.reduce_scatter_single(x, "sum", 0, dist.group.WORLD))
        functional.wait_tensor(functional.all_to_all_single(x, None, None, dist.group.WORLD))
    assert all(collected.completed_s[event.index] >= event.enqueued_s for event in collected.events)
    return collected.events


def test_every_kind_of_collective_is_recorded_with_its_payload() -> None:
    for rank, events in enumerate(run_ranks(every_collective, 2)):
        facts = [(event.op, event.reduce_op, event.dtype, event.shape, event.payload_bytes) for event in events]
        p2p = [("send", "", "float64", (2, 6), 96), ("recv", "", "float32", (3,), 12)]
        if rank == 1:
            p2p = [("recv", "", "float64", (2, 6), 96), ("send", "", "float32", (3,), 12)]
        assert facts == [
            ("all_reduce", "sum", "float64", (4, 6), 192),
            ("all_reduce", "max", "float64", (4, 6), 192),
            ("all_gather", "", "float64", (8, 6), 384),
            ("reduce_scatter", "sum", "float64", (4, 6), 192),
            ("all_to_all", "", "float64", (4, 6), 192),
            ("all_to_all", "", "float64", (4, 6), 192),
            ("broadcast", "", "bf16", (4, 6), 48),
            ("all_reduce", "sum", "int64", (), 8),
            *p2p,
            ("all_reduce", "sum", "float64", (4, 6), 192),
            ("all_gather", "", "float64", (8, 6), 384),
            ("reduce_scatter", "sum", "float64", (4, 6), 192),
            ("all_to_all", "", "float64", (4, 6), 192),
        ]
        assert [event.index for event in events] == list(range(len(events)))
        assert [event.seq for event in events if event.kind == "collective"] == list(range(12))
        assert [event.seq for event in events if event.kind == "p2p"] == [0, 1]
        for event in events:
            assert (event.step, event.micro_batch, event.chunk, event.phase) == (1, 2, 0, "forward")
            assert event.module == "layers.3.mlp.down" and event.group == "pair.0"
            assert event.call_site.split(":")[0].endswith("test_recorder.py")
        assert len({event.call_site for event in events}) >= 12
        assert [(event.input_splits, event.output_splits) for event in events if event.op == "all_to_all"] == [
            ([(1, 3), (3, 1)][rank], [(1, 3), (3, 1)][rank]), ((2, 2), (2, 2)), ((2, 2), (2, 2)),
        ]  # fmt: skip
        assert events[6].peer == 1
        assert [(event.peer, event.tag) for event in events if event.kind == "p2p"] == [(1 - rank, 5), (1 - rank, 0)]
        assert [event.asynchronous for event in events[:8]] == [False] * 7 + [True]


def peers_in_a_subgroup() -> list[Event]:
    group = dist.new_group([1, 2])
    recording, collected = recorder()
    with recording:
        if dist.get_rank() == 1:
            dist.send(torch.ones(1), 2, group=group)
        if dist.get_rank() == 2:
            dist.recv(torch.ones(1), 1, group=group)
        if dist.get_rank():
            dist.broadcast(torch.ones(1), 2, group=group)
    return collected.events


def test_peers_are_global_ranks_also_in_a_subgroup() -> None:
    _, one, two = run_ranks(peers_in_a_subgroup, 3)
    assert [(event.op, event.peer) for event in one] == [("send", 2), ("broadcast", 2)]
    assert [(event.op, event.peer) for event in two] == [("recv", 1), ("broadcast", 2)]


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False, dtype=torch.float64) for _ in range(2))
        self.head = nn.Linear(8, 5, bias=False, dtype=torch.float64)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return self.head(x)


def fsdp_step() -> list[Event]:
    torch.manual_seed(0)
    model = Blocks()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    recording, collected = recorder()
    with recording:
        with at(phase="forward"):
            loss = model(torch.ones(3, 8, dtype=torch.float64, requires_grad=True)).sum()
        with at(phase="backward_input"):
            loss.backward()
    return collected.events


def test_fsdp2s_own_traffic_is_recorded_in_both_directions() -> None:
    for events in run_ranks(fsdp_step, 2):
        # one unit is 8 x 8 float64; the root's head has 5 rows, padded to 6 on two ranks. The root keeps what it gathered.
        assert [(event.phase, event.op, event.module, event.payload_bytes) for event in events] == [
            ("forward", "all_gather", "root", 6 * 8 * 8),
            ("forward", "all_gather", "layers.0", 512),
            ("forward", "all_gather", "layers.1", 512),
            ("backward_input", "all_gather", "layers.1", 512),
            ("backward_input", "all_gather", "layers.0", 512),
            ("reduce", "reduce_scatter", "layers.1", 512),
            ("reduce", "reduce_scatter", "layers.0", 512),
            ("reduce", "reduce_scatter", "root", 6 * 8 * 8),
        ]


class Send(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.origin = origin()
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        with back_at(ctx.origin, "backward_input"):
            grad = grad.clone()
            dist.all_reduce(grad)
        return grad


def backward_of_a_module() -> tuple[list[Event], str]:
    recording, collected = recorder()
    x = torch.ones(3, requires_grad=True)
    with recording:
        with at(phase="forward", micro_batch=4), in_module("layers.0.attention.qkv"):
            y = Send.apply(x)
            here = origin().call_site
        with at(phase="backward"):
            y.sum().backward()
        recording.mark("end")
        with recording.compute("span"), in_module("inside"):
            pass
    return collected.events, here


def test_a_backward_is_recorded_under_its_forwards_module_and_call_site() -> None:
    (events, here), _ = run_ranks(backward_of_a_module, 2)
    reduce, mark, span = events
    assert (reduce.module, reduce.phase, reduce.micro_batch) == ("layers.0.attention.qkv", "backward_input", 4)
    file, line = reduce.call_site.rsplit(":", 1)
    there, next_line = here.rsplit(":", 1)
    assert (file, abs(int(line) - int(next_line))) == (there, 17)  # where origin() was called, in Send.forward
    assert (mark.kind, mark.op) == ("mark", "end") and (span.kind, span.op) == ("compute", "span")


def swap_on_rank_one(folder: str) -> None:
    rank = dist.get_rank()
    with RecordingWriter(Path(folder), header(rank, 2, [PAIR])) as writer, Recorder(writer, {dist.group.WORLD.group_name: PAIR}):
        first, second = torch.full((4,), 1.0), torch.full((4,), 2.0)
        for name, tensor in [("first", first), ("second", second)][:: 1 - 2 * rank]:
            with in_module(name):
                dist.all_reduce(tensor)
        sent = torch.zeros(4)
        dist.all_to_all_single(torch.zeros(4 + rank), sent, [2 + rank, 2], [2, 2])
        if rank == 0:
            assert first.tolist() == [3.0] * 4 and second.tolist() == [3.0] * 4  # gloo added unlike tensors and said nothing


def test_what_gloo_lets_pass_is_found_in_the_recordings(tmp_path) -> None:
    run_ranks(swap_on_rank_one, 2, (str(tmp_path),))
    recordings = read_recordings(tmp_path)
    (found,) = cross_check(recordings)
    assert found.cause == "order" and "first" in found.message and "second" in found.message
    later = [Recording(header=each.header, events=each.events[2:]) for each in recordings]
    (found,) = cross_check(later)
    assert found.cause == "splits"


def dies_in_a_collective(folder: str) -> None:
    rank = dist.get_rank()
    with RecordingWriter(Path(folder), header(rank, 2, [PAIR]), flush_each=True) as writer:
        with Recorder(writer, {dist.group.WORLD.group_name: PAIR}):
            for step in range(3):
                with at(step=step):
                    if (rank, step) == (1, 2):
                        os.kill(os.getpid(), signal.SIGKILL)
                    dist.all_reduce(torch.ones(4))


def test_a_killed_rank_leaves_its_events_up_to_the_last(tmp_path) -> None:
    with pytest.raises(RanksFailed):
        run_ranks(dies_in_a_collective, 2, (str(tmp_path),), timeout_s=20)
    zero, one = read_recordings(tmp_path)
    assert [event.step for event in one.events] == [0, 1]
    assert [event.step for event in zero.events] == [0, 1, 2]
    assert zero.events[2].completed_s is None and zero.events[1].completed_s is not None
    (found,) = cross_check([zero, one])
    assert (found.cause, found.ranks, found.seq) == ("missing", (1,), 2)
