"""The schedule of a proof with pipeline stages: the one that the layout's word says, or one from a file."""

from __future__ import annotations

from meshwright.errors import InputError, Mistake
from meshwright.schedule import Schedule, build, placement
from meshwright.spec.layout import Layout
from meshwright.spec.workload import Training


def schedule_of(layout: Layout, workload: Training, given: Schedule | None) -> Schedule | None:
    """What the ranks of this layout carry out; None without stages.

    zb-1p and zb-2p are made for equal durations, which is what a proof can know.

    Raises:
        InputError: ``given`` has another number of ranks, chunks or micro-batches than the layout, or places chunks elsewhere.
    """
    m = layout.micro_batches(workload.batch)
    if given is None:
        return build(layout.schedule, layout.pp, layout.virtual_stages, m) if layout.pp > 1 else None
    pairs = {
        "pipeline ranks": (given.num_ranks, layout.pp),
        "micro-batches": (given.num_micro_batches, m),
        "chunks": (given.num_chunks, layout.pp * layout.virtual_stages),
    }
    mistakes = [
        Mistake(given.name, key, found, str(wanted), problem=f"does not fit the layout `{layout}`")
        for key, (found, wanted) in pairs.items()
        if found != wanted
    ]
    places = placement(layout.schedule, layout.pp, layout.virtual_stages)
    if not mistakes and given.rank_of_chunk != places:
        chunk = next(c for c, rank in enumerate(places) if given.rank_of_chunk[c] != rank)
        hint = "interleaved*v places chunk c on rank c mod pp, zb-v and dualpipe-v in a V"
        mistakes = [Mistake(given.name, f"rank of chunk {chunk}", given.rank_of_chunk[chunk], str(places[chunk]), hint,
                            f"is not where {layout.schedule} places it")]  # fmt: skip
    if mistakes:
        raise InputError(mistakes)
    return given
