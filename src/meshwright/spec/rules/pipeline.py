"""Rules of pp, its schedules, uneven stages, and recompute by layers. Letters: L layers, p stages, v chunks per rank, m micro-batches."""

from __future__ import annotations

from meshwright.spec.layout import TWO_CHUNK_SCHEDULES
from meshwright.spec.rules.data import batch_divides
from meshwright.spec.rules.rule import Bools, Case, Rule, implies

BIDIRECTIONAL_SCHEDULES = ("dualpipe", "dualpipe-v")
MANY_STAGE_SCHEDULES = ("interleaved", "dualpipe", *TWO_CHUNK_SCHEDULES)
"""Schedules whose very form needs a second stage."""


def chunks_divide_layers(case: Case) -> Bools:
    """Every layer is in exactly one chunk: without ``stages``, L must be a multiple of p v. Rounding would drop or repeat layers."""
    return case.layout.stages is not None or case.model.num_layers % case.chunks == 0


def stages_count_is_chunks(case: Case) -> Bools:
    """One number of layers for each of the p v chunks, in model order."""
    return case.layout.stages is None or len(case.layout.stages) == case.chunks


def stages_sum_to_layers(case: Case) -> Bools:
    """Every layer is in exactly one chunk."""
    return case.layout.stages is None or sum(case.layout.stages) == case.model.num_layers


def stages_have_layers(case: Case) -> Bools:
    """A chunk without layers only passes activations on. The first may hold the embedding alone, the last the head alone."""
    stages = case.layout.stages
    return stages is None or all(layers > 0 for layers in stages[1:-1])


def schedule_has_stages(case: Case) -> Bools:
    """Interleaving, V shapes and two directions place chunks on several ranks; with one stage there is nothing to place."""
    return implies(case.layout.schedule in MANY_STAGE_SCHEDULES, case.layout.pp > 1)


def interleaved_rounds_are_whole(case: Case) -> Bools:
    """Micro-batches go round the ranks p at a time (Narayanan et al. 2021, arXiv 2104.04473, section 2.2): m a multiple of p."""
    interleaved = (case.layout.schedule == "interleaved") & batch_divides(case)
    return implies(interleaved, case.micro_batches % case.layout.pp == 0)


def dualpipe_stages_pair(case: Case) -> Bools:
    """DualPipe puts stages i and p-1-i on the same rank (DeepSeek-V3, arXiv 2412.19437, section 3.2.1): p is even."""
    return implies(case.layout.schedule == "dualpipe", case.layout.pp % 2 == 0)


def dualpipe_directions_share(case: Case) -> Bools:
    """Half of the micro-batches enter at each end, so m is even (DualPipe's own check: num_chunks % 2 == 0)."""
    return implies((case.layout.schedule == "dualpipe") & batch_divides(case), case.micro_batches % 2 == 0)


def dualpipe_fills(case: Case) -> Bools:
    """Both directions meet in the middle only when m >= 2 p (DualPipe's own check: num_chunks >= num_ranks * 2)."""
    both_ends = (case.layout.schedule in BIDIRECTIONAL_SCHEDULES) & batch_divides(case)
    return implies(both_ends, case.micro_batches >= 2 * case.layout.pp)


def recompute_within_chunk(case: Case) -> Bools:
    """``full=n`` recomputes the first n layers of each chunk, so the longest chunk has at least n."""
    layout = case.layout
    if layout.recompute_layers is None:
        return True
    longest = max(layout.stages) if layout.stages else case.model.num_layers // case.chunks
    return implies(longest > 0, layout.recompute_layers <= longest)


def _uneven(case: Case) -> str:
    L, chunks = case.model.num_layers, case.chunks
    if chunks > L:
        return f"{L} layers cannot fill {chunks} chunks; cut each layer (tp), the sequence (cp) or the batch (dp) instead"
    if chunks > 16:
        return "`stages` gives each chunk its number of layers"
    low, more = divmod(L, chunks)
    return f"stages={','.join([str(low)] * (chunks - more) + [str(low + 1)] * more)} splits the layers unevenly"


def _batches(case: Case, multiple: int) -> str:
    per = case.layout.dp * case.layout.mb
    return f"m = batch / (dp x mb); a batch that is a multiple of {per * multiple} gives a fitting m"


RULES = (
    Rule(
        code="pp-layers",
        key="pp",
        holds=chunks_divide_layers,
        problem=lambda case: (
            f"with {case.layout.schedule} makes {case.chunks} chunks of layers, and that does not divide num_layers = "
            f"{case.model.num_layers} of {case.model.name}"
        ),
        hint=_uneven,
    ),
    Rule(
        code="stages-count",
        key="stages",
        holds=stages_count_is_chunks,
        problem=lambda case: f"has {len(case.layout.stages or ())} numbers for {case.chunks} chunks",
        legal=lambda case: f"{case.chunks} numbers (pp {case.layout.pp} x {case.layout.virtual_stages} chunks per rank)",
        hint=lambda case: "one number of layers for each chunk, in model order",
    ),
    Rule(
        code="stages-sum",
        key="stages",
        holds=stages_sum_to_layers,
        problem=lambda case: f"adds up to {sum(case.layout.stages or ())} of the {case.model.num_layers} layers of {case.model.name}",
        legal=lambda case: f"numbers that add up to {case.model.num_layers}",
        hint=lambda case: "every layer belongs to exactly one stage",
    ),
    Rule(
        code="stages-empty",
        key="stages",
        holds=stages_have_layers,
        problem=lambda case: "leaves a stage in the middle without layers",
        legal=lambda case: "1 or more; 0 only first (embedding alone) or last (head alone)",
        hint=lambda case: "fewer stages, or layers from a neighbour",
    ),
    Rule(
        code="pp-one-stage",
        key="pp",
        holds=schedule_has_stages,
        problem=lambda case: f"leaves {case.layout.schedule} nothing to schedule",
        legal=lambda case: f"2 or more with {case.layout.schedule}",
        hint=lambda case: "leave the schedule out",
    ),
    Rule(
        code="pp-interleaved-m",
        key="pp",
        holds=interleaved_rounds_are_whole,
        problem=lambda case: f"does not divide m = {case.micro_batches} micro-batches, which interleaved takes p at a time",
        hint=lambda case: _batches(case, case.layout.pp),
    ),
    Rule(
        code="pp-dualpipe-stages",
        key="pp",
        holds=dualpipe_stages_pair,
        problem=lambda case: "is odd, and dualpipe pairs stage i with p-1-i",
        hint=lambda case: "an even pp, or another schedule",
    ),
    Rule(
        code="pp-dualpipe-even-m",
        key="batch",
        holds=dualpipe_directions_share,
        problem=lambda case: f"gives m = {case.micro_batches} micro-batches, and dualpipe sends half from each end",
        legal=lambda case: f"a multiple of {2 * case.layout.dp * case.layout.mb} (2 x dp {case.layout.dp} x mb {case.layout.mb})",
        value=lambda case: case.workload.batch,
    ),
    Rule(
        code="pp-dualpipe-m",
        key="pp",
        holds=dualpipe_fills,
        problem=lambda case: f"with {case.layout.schedule} needs m >= 2 p = {2 * case.layout.pp} micro-batches, has {case.micro_batches}",
        hint=lambda case: f"a batch of {2 * case.layout.pp * case.layout.dp * case.layout.mb} or more fills it; so does a smaller mb or dp",
    ),
    Rule(
        code="recompute-layers",
        key="recompute",
        holds=recompute_within_chunk,
        problem=lambda case: f"asks for {case.layout.recompute_layers} layers of chunks that have fewer",
        legal=lambda case: f"full, or full=n with n up to {max(case.layout.stages or (case.model.num_layers // case.chunks,))}",
        hint=lambda case: "recompute=full recomputes all layers",
        value=lambda case: f"{case.layout.recompute}={case.layout.recompute_layers}",
    ),
)
