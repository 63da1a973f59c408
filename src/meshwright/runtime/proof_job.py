"""One proof as plain data: what every rank runs, what one device runs, and what comes back from both.

    reference = run_reference(job)
    results = run_ranks(run_proof_rank, job.layout.world_size, (job, reference.seed))
    parallel = assemble(job, results)        # whole tensors again, by the same names as the reference's

All arrays that come back are numpy's, so that what compares them needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshwright.recording.events import Event, Header
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.workload import Training

if TYPE_CHECKING:
    import numpy as np

Array = Any
"""A numpy array."""


@dataclass(frozen=True, kw_only=True)
class ProofJob:
    """What is to be proved; picklable.

    Attributes:
        workload: seq and batch; its precision is not read.
        precision: a key of reference/train.py's PRECISIONS.
        seed: of weights, tokens and dropout. steps: optimizer steps.
        dropout: rate. clip_norm: None for no clipping.
        recording: folder that each rank writes its recording to; None for none. Events come back in any case.
        timeout_s: of each collective. plan_hash: written into the recordings' headers.
    """

    model: Model
    workload: Training
    layout: Layout
    precision: str = "float64"
    seed: int = 0
    steps: int = 3
    dropout: float = 0.0
    clip_norm: float | None = 1.0
    recording: str | None = None
    timeout_s: float = 60.0
    plan_hash: str = ""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one rank holds of one parameter after all cuts: rows [first_row, first_row + len(values)) of its local part."""

    first_row: int
    values: Array


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What one rank brings back.

    Attributes:
        losses: of each step, this rank's summand: over all ranks they sum to the job's. gradient_norms: of the whole model, before clipping.
        gradients: for each step, by parameter, before clipping. weights: the optimizer's, after the last step.
        events: everything that this rank recorded, in order. Scope: steps count from 0.
        saved_bytes: for each block ("embedding", "layers.0", "head", "mtp", ...) the bytes that its forward left for its backward in the
            first micro-batch: distinct storages, parameters left out.
    """

    rank: int
    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    gradients: tuple[dict[str, Piece], ...]
    weights: dict[str, Piece]
    header: Header
    events: tuple[Event, ...] = ()
    saved_bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Whole:
    """Numbers of the whole model, of one device or put together from the ranks; attributes as in RankResult.

    Attributes:
        gradients: for each step, by full name, of the unsharded shape.
        seed: that the weights came from (the reference takes the next one where a routing choice is too close).
        loads: int64 [steps, micro-batches of one rank, MoE layers (multi-token-prediction layers last), ranks, E]: token copies that each
            rank sends to each expert, by the one-device router; None without experts. Filled by the reference only.
        drift: largest difference between two ranks' copies of one entry, of gradients and weights. Of the ranks only.
    """

    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    gradients: tuple[dict[str, np.ndarray[Any, Any]], ...]
    weights: dict[str, np.ndarray[Any, Any]]
    seed: int
    loads: Array = None
    drift: float = 0.0


def run_reference(job: ProofJob) -> Whole:
    """The job on one device, in this process."""
    from meshwright.runtime.reference.train import precision_named, train_from_seed

    precision = precision_named(job.precision)
    run = train_from_seed(job.model, job.seed, [_global_batches(job, step) for step in range(job.steps)], _recipe(job), precision)
    return Whole(
        losses=tuple(step.loss for step in run.steps),
        gradient_norms=tuple(step.gradient_norm for step in run.steps),
        gradients=tuple({name: _array(tensor) for name, tensor in step.gradients.items()} for step in run.steps),
        weights={name: _array(tensor) for name, tensor in run.weights.items()},
        seed=run.seed if run.seed is not None else job.seed,
        loads=_loads(job, run.steps),
    )


def run_proof_rank(job: ProofJob, seed: int) -> RankResult:
    """The job on one rank of a process group of the layout's size (launch.run_ranks); ``seed`` is the reference's.

    Only the steps are recorded, not the making of groups and weights.
    """
    import torch.distributed as dist

    from meshwright.mesh import Mesh
    from meshwright.runtime.groups import make_groups
    from meshwright.runtime.recorder import Recorder, header
    from meshwright.runtime.reference.train import precision_named
    from meshwright.runtime.scope import at
    from meshwright.runtime.train_step import Training as RankTraining

    rank, model, layout = dist.get_rank(), job.model, job.layout
    mesh = Mesh(layout, model.attention.num_heads if model.attention.mla else model.attention.num_kv_heads)
    groups = make_groups(mesh, rank, job.timeout_s)
    training = RankTraining(
        model, layout, groups, job.workload.seq, precision_named(job.precision), _recipe(job), seed, gathered=job.precision == "fsdp"
    )
    head = header(rank, layout.world_size, groups.recorded().values(), mesh.coordinates(rank), job.plan_hash)
    sink = _Sink(job, head)
    done = []
    with Recorder(sink, groups.recorded()):
        for step in range(job.steps):
            with at(step=step):
                done.append(training.step(_own_batches(job, step, mesh.coordinates(rank))))
    sink.close()
    shares = training.shares()
    pieces = {share.name: Piece(first_row=share.first_row, values=_array(weight)) for share, weight in shares}
    pieces |= {name: Piece(first_row=0, values=_array(tensor)) for name, tensor in training.buffers().items()}
    gradients = tuple(
        {share.name: Piece(first_row=share.first_row, values=_array(g)) for (share, _), g in zip(shares, result.gradients, strict=True)}
        for result in done
    )
    return RankResult(
        rank=rank, losses=tuple(float(r.loss) for r in done), gradient_norms=tuple(float(r.gradient_norm) for r in done), gradients=gradients,
        weights=pieces, header=head, events=tuple(sink.events), saved_bytes=training.saved_bytes,
    )  # fmt: skip


def assemble(job: ProofJob, results: list[RankResult]) -> Whole:
    """Put the ranks' pieces together.

    Raises:
        ValueError: an entry of a parameter that no rank holds.
    """
    from meshwright.runtime.proof_pieces import Layouts, joined

    places = Layouts(job.model, job.layout)
    gradients, drifts = [], [0.0]
    for step in range(job.steps):
        whole, drift = joined(places, {result.rank: result.gradients[step] for result in results})
        gradients.append(whole)
        drifts.append(drift)
    weights, drift = joined(places, {result.rank: result.weights for result in results})
    return Whole(
        losses=tuple(sum(result.losses[step] for result in results) for step in range(job.steps)),
        gradient_norms=results[0].gradient_norms,
        gradients=tuple(gradients),
        weights=weights,
        seed=job.seed,
        drift=max(*drifts, drift),
    )


class _Sink:
    """Keeps the events, and writes them too where the job wants that."""

    def __init__(self, job: ProofJob, head: Header) -> None:
        from pathlib import Path

        from meshwright.recording.write import RecordingWriter

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


def _array(tensor: Any) -> Array:
    """float64 holds every dtype's values, bf16 included, which numpy has not."""
    return tensor.detach().double().numpy().copy()


def _recipe(job: ProofJob) -> Any:
    from meshwright.runtime.reference.train import Recipe

    return Recipe(clip_norm=job.clip_norm, dropout=job.dropout, dropout_seed=job.seed)


def _global_batches(job: ProofJob, step: int) -> list[Any]:
    """The micro-batches of the whole job. Micro-batch i of data-parallel rank d is number i dp + d."""
    from meshwright.runtime.sample_batches import micro_batches, sample_batch

    return micro_batches(sample_batch(job.model.vocab_size, job.workload.batch, job.workload.seq, job.seed, step), job.layout.mb)


def _data_rank(layout: Layout, coordinates: dict[str, int]) -> int:
    return coordinates["dp_replicate"] * layout.dp_shard + coordinates["dp_shard"]


def _own_batches(job: ProofJob, step: int, coordinates: dict[str, int]) -> list[Any]:
    from meshwright.runtime.dropout import Dropout
    from meshwright.runtime.parallel.setting import MicroBatch

    dropout = Dropout(job.dropout, job.seed, step) if job.dropout else None
    data_rank, layout = _data_rank(job.layout, coordinates), job.layout
    return [
        MicroBatch(tokens=batch.tokens, labels=batch.labels, first_sequence=number * layout.mb, dropout=dropout)
        for number, batch in enumerate(_global_batches(job, step))
        if number % layout.dp == data_rank
    ]


def _loads(job: ProofJob, steps: Any) -> Array:
    """See Whole.loads."""
    import torch

    from meshwright.mesh import Mesh
    from meshwright.runtime.parallel.sequence import held_positions
    from meshwright.runtime.parallel.setting import stream_positions
    from meshwright.runtime.reference.moe import tokens_per_expert

    layout, moe, mesh = job.layout, job.model.moe, Mesh(job.layout)
    if moe is None:
        return None
    layers = sorted(steps[0].experts[0])
    micro_batches = layout.micro_batches(job.workload.batch)
    loads = torch.zeros((len(steps), micro_batches, len(layers), layout.world_size, moe.num_experts), dtype=torch.int64)
    for rank in range(layout.world_size):
        place = mesh.coordinates(rank)
        positions = stream_positions(layout, held_positions(layout, place["cp"], job.workload.seq), place["tp"]).tensor
        for s, step in enumerate(steps):
            for i in range(micro_batches):
                chosen = step.experts[i * layout.dp + _data_rank(layout, place)]
                for at, layer in enumerate(layers):
                    loads[s, i, at, rank] = tokens_per_expert(chosen[layer][:, positions], moe.num_experts)
    return loads.numpy()
