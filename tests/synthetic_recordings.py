"""Recordings of ranks that do exactly what is expected of them, for faults to be planted in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.ledger.build import Ledger, build
from meshwright.ledger.expected import Expected, expected_events
from meshwright.mesh import Mesh
from meshwright.recording.events import Event, Group, Header
from meshwright.recording.read import Recording
from meshwright.spec.layout import parse_layout
from meshwright.spec.model import Attention, LayerKind, Model, Moe
from meshwright.spec.rules import check
from meshwright.spec.rules.rule import kv_heads
from meshwright.spec.workload import Training
from meshwright.units import DTYPE_BYTES

DENSE = Model(
    name="dense",
    vocab_size=61,
    hidden_size=32,
    ffn_size=48,
    attention=Attention(num_heads=8, num_kv_heads=2, head_dim=8, qk_norm=True),
    layers=(LayerKind(), LayerKind(window=5), LayerKind()),
)

EXPERTS = Model(
    name="experts",
    vocab_size=60,
    hidden_size=32,
    ffn_size=48,
    attention=Attention(num_heads=8, num_kv_heads=4, head_dim=8),
    layers=(LayerKind(), LayerKind(moe=True), LayerKind(moe=True)),
    moe=Moe(num_experts=8, top_k=2, expert_ffn_size=16, shared_ffn_size=24, aux_loss_coefficient=0.01),
)


def ledger_of(model: Model, text: str, seq: int = 24, m: int = 2, precision: str = "float64") -> Ledger:
    """A legal layout's ledger, with m micro-batches."""
    layout = parse_layout(text)
    workload = Training(seq=seq, batch=m * layout.dp * layout.mb, precision=precision)
    check(model, workload, layout)
    return build(model, workload, layout)


def expected_of(ledger: Ledger, steps: int = 1, loads: object = None) -> dict[int, list[Expected]]:
    return {rank: expected_events(ledger, rank, steps, loads) for rank in range(ledger.layout.world_size)}


def recorded(ledger: Ledger, expected: dict[int, list[Expected]]) -> list[Recording]:
    """The recordings of ranks that do what is expected."""
    return [recording(ledger, rank, events) for rank, events in expected.items()]


def recording(ledger: Ledger, rank: int, events: Sequence[Expected]) -> Recording:
    mesh = Mesh(ledger.layout, kv_heads(ledger.model))
    names = {axis: f"{axis}.{min(mesh.group_of(rank, axis))}" for axis in {event.axis for event in events}}
    groups = tuple(Group(name=name, axis=axis, ranks=tuple(mesh.group_of(rank, axis))) for axis, name in names.items())
    seqs: Counter[tuple[str, str]] = Counter()
    made = []
    for index, event in enumerate(events):
        kind = "p2p" if event.op in ("send", "recv") else "collective"
        made.append(_event(index, event, names[event.axis], kind, seqs[event.axis, kind]))
        seqs[event.axis, kind] += 1
    header = Header(world_size=mesh.world_size, rank=rank, groups=groups, coordinates=mesh.coordinates(rank))
    return Recording(header=header, events=tuple(made))


def _event(index: int, event: Expected, group: str, kind: str, seq: int) -> Event:
    return Event(
        index=index, kind=kind, step=event.step, micro_batch=event.micro_batch, phase=event.phase, module=event.module,  # type: ignore[arg-type]
        call_site=f"{event.module}:{event.phase}", op=event.op, reduce_op=event.reduce_op, group=group, seq=seq, peer=event.peer,
        tag=0 if kind == "p2p" else None, dtype=event.dtype, shape=(event.payload_bytes // DTYPE_BYTES[event.dtype],),
        payload_bytes=event.payload_bytes, input_splits=event.input_splits, output_splits=event.output_splits, enqueued_s=float(index),
    )  # fmt: skip


def uneven_loads(ledger: Ledger) -> Any:
    """[1, m, MoE layers, ranks, E]: every rank's copies, ranks of one tp group alike without sp, some experts without any."""
    assert ledger.model.moe is not None
    layout, moe, generator = ledger.layout, ledger.model.moe, np.random.default_rng(0)
    copies = ledger.sizes.routed_tokens * moe.top_k
    chances = np.arange(moe.num_experts) / np.arange(moe.num_experts).sum()
    shape = (1, ledger.micro_batches, 2, layout.world_size)
    loads = generator.multinomial(copies, chances, size=shape)
    if not layout.sp:
        loads = loads[:, :, :, np.arange(layout.world_size) // layout.tp * layout.tp]  # order tp first
    assert (loads == 0).any()
    return loads
