"""One proof as plain data: what every rank runs, what one device runs, and what comes back from both.

    reference = run_reference(job)
    results = run_ranks(run_proof_rank, job.layout.world_size, (job, reference.seed))
    parallel = assemble(job, results)        # whole tensors again, by the same names as the reference's

All arrays that come back are numpy's, so that what compares them needs no torch; neither does importing this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshwright.recording.events import Event, Header
from meshwright.schedule import Schedule, build
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.workload import Training

if TYPE_CHECKING:
    import numpy as np

Array = Any
"""A numpy array."""

Experts = tuple[tuple[dict[int, Array], ...], ...]
"""See Whole.experts."""


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
        schedule: of the pipeline; None for the one that the layout's word says.
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
    schedule: Schedule | None = None

    def stages(self) -> Schedule | None:
        """The schedule of a layout with pipeline stages, in the order that was given or that its word says; None without."""
        return stage_schedule(self.layout, self.workload, self.schedule)


def stage_schedule(layout: Layout, workload: Training, given: Schedule | None) -> Schedule | None:
    """See ProofJob.stages."""
    if layout.pp == 1:
        return None
    return given or build(layout.schedule, layout.pp, layout.virtual_stages, layout.micro_batches(workload.batch))


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one rank holds of one parameter after all cuts: rows [first_row, first_row + len(values)) of its local part."""

    first_row: int
    values: Array


@dataclass(frozen=True, kw_only=True)
class RankResult:
    """What one rank brings back.

    Attributes:
        losses: of each step, this rank's summand: over all ranks they sum to the job's.
        gradient_norms: of the whole model, before clipping.
        gradients: for each step, by parameter, before clipping. weights: the optimizer's, after the last step.
        events: everything that this rank recorded, in order. Scope: steps count from 0.
        saved_bytes: for each block ("embedding", "layers.0", "head", "mtp", ...) the bytes that its forward left for its backward in the
            first micro-batch that passes it: distinct storages, parameters left out.
        resident_bytes: of weights and of optimizer state after the last step (resident_bytes.py).
        most_in_flight: chunk passes whose activations the rank held at once.
    """

    rank: int
    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    gradients: tuple[dict[str, Piece], ...]
    weights: dict[str, Piece]
    header: Header
    events: tuple[Event, ...] = ()
    saved_bytes: dict[str, int] = field(default_factory=dict)
    resident_bytes: dict[str, int] = field(default_factory=dict)
    most_in_flight: int = 1


@dataclass(frozen=True, kw_only=True)
class Whole:
    """Numbers of the whole model, of one device or put together from the ranks; attributes as in RankResult.

    Attributes:
        gradients: for each step, by full name, of the unsharded shape.
        seed: that the weights came from (the reference takes the next one where a routing choice is too close).
        loads: int64 [steps, micro-batches of one rank, MoE layers (multi-token-prediction layers last), ranks, E]: token copies that each
            rank sends to each expert, by the one-device router; None without experts. Filled by the reference only.
        experts: for each step, for each micro-batch of the job, by layer index int64 [mb, S, k]: the experts that the one-device router
            chose; empty without experts. Filled by the reference only.
        drift: largest difference between two ranks' copies of one entry, of gradients and weights, and of the norm. Of the ranks only.
    """

    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    gradients: tuple[dict[str, np.ndarray[Any, Any]], ...]
    weights: dict[str, np.ndarray[Any, Any]]
    seed: int
    loads: Array = None
    experts: Experts = ()
    drift: float = 0.0


def run_reference(job: ProofJob) -> Whole:
    """The job on one device, in this process."""
    from meshwright.runtime.proof_reference import run

    return run(job)


def run_proof_rank(job: ProofJob, seed: int, experts: Experts = ()) -> RankResult:
    """The job on one rank of a process group of the layout's size (launch.run_ranks); ``seed`` is the reference's.

    experts: the reference's, to be taken instead of this rank's own choice; empty for its own. In float64 every choice is clear.
    A rounding of float32 or bf16 turns some over, and with them who sends what to whom.

    Only the steps are recorded, not the making of groups and weights.
    """
    from meshwright.runtime.proof_rank import run

    return run(job, seed, experts)


def assemble(job: ProofJob, results: list[RankResult]) -> Whole:
    """Put the ranks' pieces together.

    Raises:
        ValueError: an entry of a parameter that no rank holds.
    """
    from meshwright.runtime.proof_pieces import put_together

    return put_together(job, results)
