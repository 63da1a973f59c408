"""A dry rank sends what a real one does: the same program under gloo with numbers, and under the fake group without."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from meshwright.recording.events import Event
from meshwright.runtime.cut import Holder, Place, local_part
from meshwright.runtime.data_parallel.buckets import Buckets
from meshwright.runtime.data_parallel.fully_sharded import FullySharded
from meshwright.runtime.data_parallel.shares import AdamW, clip_scale, count_tokens, gradient_norm
from meshwright.runtime.data_parallel.units import Unit, hold
from meshwright.runtime.dry import fake_job
from meshwright.runtime.launch import run_ranks
from meshwright.runtime.parallel.attention_block import Rules
from meshwright.runtime.parallel.context import ContextAxes, attention
from meshwright.runtime.parallel.experts import ExpertAxes, Load, bring_back, combine, plan_dispatch, run_experts, send_to_experts
from meshwright.runtime.parallel.sequence import ring_positions
from meshwright.runtime.recorder import Collected, Recorder
from meshwright.spec.layout import Layout
from runtime.data_parallel.test_engines import CLIP, LAYER, LAYERS, MODEL, ROOT, Network, S, V, whole_weights
from runtime.parallel.sharded import groups_of, random

pytestmark = pytest.mark.dist


def comparable(events: list[Event]) -> list[Event]:
    """Without clocks; and the names of the tp etc. groups are the layout's, so they must agree too."""
    return [replace(event, enqueued_s=None, started_s=None, completed_s=None) for event in events]


def network_on_meta(groups, layout: Layout) -> tuple[Network, list[Unit]]:
    tp = groups["tp"]
    holder = Holder(tp=Place(tp.place, tp.size), padded_vocab=V + V % tp.size)
    parameters = {f"layers.{i}.{p.module}.{p.name}": p for i in range(LAYERS) for p in LAYER} | {f"{p.module}.{p.name}": p for p in ROOT}
    local = {name: local_part(whole, parameters[name], MODEL, holder).to("meta") for name, whole in whole_weights().items()}
    network = Network(groups, layout, local)
    units = [Unit(name=f"layers.{i}", module=layer, held=hold(LAYER, MODEL, layout)) for i, layer in enumerate(network.layers)]
    return network, [*units, Unit(name="root", module=network, held=hold(ROOT, MODEL, layout))]


def step(layout: Layout, fake=None) -> list[Event]:
    """One optimizer step; with ``fake`` its tensors have no storage."""
    from contextlib import nullcontext

    groups = groups_of(layout, kv_heads=1)
    network, units = network_on_meta(groups, layout)
    engine = FullySharded(units, groups, layout.zero_variant, torch.float64, torch.float64) if layout.zero == 3 else None
    collected = Collected()
    with fake or nullcontext():
        network.to_empty(device="cpu")
        if engine is None:
            engine = Buckets(units, groups, layout.zero, torch.float64)
        optimizer = AdamW(engine.shares, torch.float64, learning_rate=1e-2)
        ids = torch.zeros(1, S, dtype=torch.int64)
        with Recorder(collected, groups.recorded()):
            count = count_tokens((ids >= 0).sum(), groups["dp_cp"])
            for index in range(2):
                engine.begin_micro_batch(first=index == 0, last=index == 1)
                network(ids, ids, count).backward()
                engine.end_micro_batch()
            engine.finish_gradients()
            optimizer.step(clip_scale(gradient_norm(engine.shares, groups["world"]), CLIP))
            engine.publish_weights()
    return comparable(collected.events)


def dry_step(layout: Layout, rank: int) -> list[Event]:
    with fake_job(rank, layout.world_size) as fake:
        return step(layout, fake)


@pytest.mark.parametrize("zero", ["0", "1", "2", "3", "3:local", "3:keep"])
def test_a_step_of_every_zero_stage(zero: str) -> None:
    stage, _, variant = zero.partition(":")
    layout = Layout(tp=2, sp=True, dp_shard=2, zero=int(stage), zero_variant=variant)
    real = run_ranks(step, 4, (layout,))
    for rank in (0, 3):
        (dry,) = run_ranks(dry_step, 1, (layout, rank), join=False)
        assert len(dry) > 30 and dry == real[rank]


def attend(layout: Layout, fake=None) -> list[Event]:
    from contextlib import nullcontext

    groups = groups_of(layout)
    ring_size = layout.cp // layout.ulysses
    kind = "ring" if layout.cp_kind == "ulysses" else layout.cp_kind
    positions = tuple(ring_positions(kind, ring_size, rank, 16) for rank in range(ring_size))
    axes = ContextAxes(kind=layout.cp_kind, cp=groups["cp"], ring=groups["ring"], ulysses=groups["ulysses"], positions=positions)
    collected = Collected()
    with fake or nullcontext():
        q, k, v = (torch.zeros(2, 16 // layout.cp, heads, 6, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
        with Recorder(collected, groups.recorded()):
            attention(q, k, v, axes, Rules(scale=0.5, window=9)).sum().backward()
    return comparable(collected.events)


def dry_attend(layout: Layout, rank: int) -> list[Event]:
    with fake_job(rank, layout.world_size) as fake:
        return attend(layout, fake)


@pytest.mark.parametrize("kind", ["ring", "zigzag", "striped", "ulysses", "allgather", "usp"])
def test_attention_of_every_cp_kind(kind: str) -> None:
    layout = Layout(cp=4, cp_kind=kind, ulysses={"ulysses": 4, "usp": 2}.get(kind, 1))
    real = run_ranks(attend, 4, (layout,))
    (dry,) = run_ranks(dry_attend, 1, (layout, 2), join=False)
    assert dry and dry == real[2]


def route(layout: Layout, load: Load | None, fake=None) -> list[Event]:
    """Eight experts, 8 tokens on each data rank, each token to two experts that follow each other: 2 copies for each expert."""
    from contextlib import nullcontext

    groups = groups_of(layout)
    axes = ExpertAxes(ep=groups["ep"], etp=groups["etp"], sp=layout.sp)
    collected = Collected()
    tokens = 8 // layout.tp if layout.sp else 8
    with fake or nullcontext():
        first = torch.arange(tokens) * (8 // tokens)
        x = torch.zeros(tokens, 6, dtype=torch.float64, requires_grad=True)
        weights = torch.ones(tokens, 2, dtype=torch.float64)
        local = 8 // layout.ep
        gate_up = torch.zeros(local * 8 // layout.etp, 6, dtype=torch.float64, requires_grad=True)
        down = torch.zeros(local * 6, 8 // layout.etp, dtype=torch.float64, requires_grad=True)
        with Recorder(collected, groups.recorded()):
            dispatch = plan_dispatch(torch.stack((first, (first + 1) % 8), -1), 8, axes, load)
            rows = run_experts(send_to_experts(x, dispatch, axes), gate_up, down, torch.relu, dispatch, axes)
            combine(bring_back(rows, dispatch, axes), weights, dispatch).sum().backward()
    return comparable(collected.events)


def dry_route(layout: Layout, load: Load, rank: int) -> list[Event]:
    with fake_job(rank, layout.world_size) as fake:
        return route(layout, load, fake)


def test_experts_with_the_load_from_outside() -> None:
    layout = Layout(dp_shard=4, ep=4)
    load = Load(sent=(2,) * 8, received=((2, 2),) * 4)
    real = run_ranks(route, 4, (layout, None))
    (dry,) = run_ranks(dry_route, 1, (layout, load, 1), join=False)
    assert len(dry) == 5 and dry == real[1]
    layout = Layout(tp=2, sp=True, dp_shard=2, ep=2, etp=2)
    load = Load(sent=(1,) * 8, received=((1,) * 4,) * 2, by_etp=((2,) * 4,) * 2)
    real = run_ranks(route, 4, (layout, None))
    (dry,) = run_ranks(dry_route, 1, (layout, load, 3), join=False)
    assert len(dry) == 10 and dry == real[3]


def large() -> list[Event]:
    """A row of a 405B model's layer on one rank of 16,384; it would be 3.5 GiB of weights if they were there."""
    from meshwright.runtime.parallel.linear import column_linear, row_linear

    layout = Layout(tp=8, sp=True, cp=2, dp_shard=1024)
    with fake_job(9999, layout.world_size) as fake:
        groups = groups_of(layout)
        collected = Collected()
        with fake:
            x = torch.zeros(1, 131072 // 16, 16384, dtype=torch.bfloat16, requires_grad=True)
            up, down = (
                torch.zeros(*shape, dtype=torch.bfloat16, requires_grad=True)
                for shape in ((2 * 53248 // 8, 16384), (16384, 2 * 53248 // 8))
            )
            with Recorder(collected, groups.recorded()):
                row_linear(column_linear(x, up, None, groups["tp"], True), down, None, groups["tp"], True).sum().backward()
        return collected.events


def test_true_sizes_in_a_job_that_no_machine_here_could_hold() -> None:
    (events,) = run_ranks(large, 1, join=False)
    whole = 131072 // 2 * 16384 * 2
    assert [(event.op, event.payload_bytes) for event in events] == [
        ("all_gather", whole), ("reduce_scatter", whole), ("all_gather", whole), ("all_gather", whole), ("reduce_scatter", whole),
    ]  # fmt: skip
    assert {event.group for event in events} == {f"tp.{9999 // 8}"}


def in_a_real_job() -> None:
    random(1)
    with pytest.raises(RuntimeError, match="real job"), fake_job(0, 2):
        pass
    assert dist.get_backend() == "gloo"


def test_a_real_rank_cannot_be_a_fake_one_too() -> None:
    run_ranks(in_a_real_job, 1)
