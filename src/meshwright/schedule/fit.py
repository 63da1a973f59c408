"""Whether a schedule from a file is one for this layout."""

from __future__ import annotations

from meshwright.errors import InputError, Mistake
from meshwright.schedule.actions import Schedule
from meshwright.schedule.build import placement
from meshwright.spec.layout import Layout

__all__ = ["check_fit"]


def check_fit(given: Schedule, layout: Layout, micro_batches: int) -> None:
    """The layout says how many ranks, chunks and micro-batches there are and where chunks are placed; the file says the order.

    Raises:
        InputError: ``given`` has another number of any of them, or places a chunk elsewhere.
    """
    pairs = {
        "pipeline ranks": (given.num_ranks, layout.pp),
        "micro-batches": (given.num_micro_batches, micro_batches),
        "chunks": (given.num_chunks, layout.pp * layout.virtual_stages),
    }
    mistakes = [
        Mistake(given.name, key, found, str(wanted), "pp=P:interleaved*V is P ranks and P V chunks; m = batch / (dp x mb)",
                f"does not fit the layout `{layout}`")
        for key, (found, wanted) in pairs.items()
        if found != wanted
    ]  # fmt: skip
    places = placement(layout.schedule, layout.pp, layout.virtual_stages)
    if layout.schedule == "dualpipe":
        mistakes.append(Mistake(given.name, "layout", str(layout), "a schedule with one copy of the model", "dualpipe-v has one",
                                "a file cannot say which copy a chunk is of"))  # fmt: skip
    elif not mistakes and given.rank_of_chunk != places:
        chunk = next(c for c, rank in enumerate(places) if given.rank_of_chunk[c] != rank)
        hint = "interleaved*V places chunk c on rank c mod pp, zb-v and dualpipe-v in a V"
        mistakes = [Mistake(given.name, f"rank of chunk {chunk}", given.rank_of_chunk[chunk], str(places[chunk]), hint,
                            f"is not where {layout.schedule} places it")]  # fmt: skip
    if mistakes:
        raise InputError(mistakes)
