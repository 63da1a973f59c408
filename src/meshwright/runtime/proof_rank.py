"""What one rank of a proof does: make its part of the model, take the steps under the recorder, bring its pieces back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.mesh import Mesh
from meshwright.recording.events import Event, Header
from meshwright.recording.write import RecordingWriter
from meshwright.runtime.dropout import Dropout
from meshwright.runtime.groups import axes_of, make_groups
from meshwright.runtime.parallel.setting import MicroBatch
from meshwright.runtime.progress import ProgressSink
from meshwright.runtime.proof_job import Experts, Piece, ProofJob, RankResult
from meshwright.runtime.proof_steps import data_rank, global_batches, recipe_of
from meshwright.runtime.recorder import Recorder, Sink, header
from meshwright.runtime.reference.train import precision_named
from meshwright.runtime.resident_bytes import resident_bytes
from meshwright.runtime.scope import at
from meshwright.runtime.train_step import StepResult, Training


def run(job: ProofJob, seed: int, experts: Experts = ()) -> RankResult:
    """See proof_job.run_proof_rank."""
    rank, model, layout = dist.get_rank(), job.model, job.layout
    mesh = Mesh(layout, model.attention.num_heads if model.attention.mla else model.attention.num_kv_heads)
    groups = make_groups(mesh, rank, job.timeout_s, axes_of(layout))
    precision, gathered = precision_named(job.precision), job.precision == "fsdp"
    training = Training(model, layout, groups, job.workload.seq, precision, recipe_of(job), seed, gathered, job.stages())
    head = header(rank, layout.world_size, groups.recorded().values(), mesh.coordinates(rank), job.plan_hash)
    sink = _Sink(job, head)
    done: list[StepResult] = []
    gradients: list[dict[str, Piece]] = []
    with _watched(job, head, sink) as watched, Recorder(watched, groups.recorded()):
        for step in range(job.steps):
            with at(step=step):
                done.append(training.step(_own_batches(job, step, mesh.coordinates(rank), experts[step] if experts else ())))
                gradients.append(_gradients(training, done[-1]))
    sink.close()
    return RankResult(
        rank=rank,
        losses=tuple(float(result.loss) for result in done),
        gradient_norms=tuple(float(result.gradient_norm) for result in done),
        gradients=tuple(gradients),
        weights=_weights(training),
        header=head,
        events=tuple(sink.events),
        saved_bytes=training.saved_bytes,
        resident_bytes=resident_bytes(training),
        most_in_flight=training.most_in_flight,
    )


def _gradients(training: Training, result: StepResult) -> dict[str, Piece]:
    return {
        share.name: Piece(first_row=share.first_row, values=as_array(gradient))
        for (share, _), gradient in zip(training.shares(), result.gradients, strict=True)
    }


def _weights(training: Training) -> dict[str, Piece]:
    """The optimizer's, and what moves without a gradient."""
    found = {share.name: Piece(first_row=share.first_row, values=as_array(weight)) for share, weight in training.shares()}
    return found | {name: Piece(first_row=0, values=as_array(tensor)) for name, tensor in training.buffers().items()}


def _own_batches(job: ProofJob, step: int, coordinates: dict[str, int], experts: Sequence[dict[int, Any]]) -> list[MicroBatch]:
    """experts: of the job's micro-batches, or empty."""
    dropout = Dropout(job.dropout, job.seed, step) if job.dropout else None
    own, layout = data_rank(job.layout, coordinates), job.layout
    return [
        MicroBatch(
            tokens=batch.tokens, labels=batch.labels, first_sequence=number * layout.mb, dropout=dropout,
            experts={layer: torch.from_numpy(chosen) for layer, chosen in experts[number].items()} if experts else None,
        )
        for number, batch in enumerate(global_batches(job, step))
        if number % layout.dp == own
    ]  # fmt: skip


@contextmanager
def _watched(job: ProofJob, head: Header, sink: Sink) -> Iterator[Sink]:
    """The sink, behind one that writes where the rank is, for ``meshwright watch``, where the job keeps recordings."""
    if not job.recording:
        yield sink
        return
    with ProgressSink(Path(job.recording), head, sink) as watched:
        yield watched


class _Sink:
    """Keeps the events, and writes them too where the job wants that."""

    def __init__(self, job: ProofJob, head: Header) -> None:
        self.events: list[Event] = []
        self._writer = RecordingWriter(Path(job.recording), head, flush_each=True) if job.recording else None

    def event(self, event: Event) -> None:
        self.events.append(event)
        if self._writer:
            self._writer.event(event)

    def completed(self, index: int, started_s: float | None, completed_s: float | None) -> None:
        if self._writer:
            self._writer.completed(index, started_s, completed_s)

    def close(self) -> None:
        if self._writer:
            self._writer.close()


def as_array(tensor: Tensor) -> Any:
    """numpy float64, which holds every dtype's values; numpy has no bf16."""
    return tensor.detach().double().numpy().copy()
