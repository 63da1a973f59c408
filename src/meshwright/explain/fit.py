"""What would make a layout fit: single changes of it, on the same GPUs, each with the peak that it would have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.errors import InputError
from meshwright.estimate import fits, fullest, priced
from meshwright.priced import Priced
from meshwright.spec.layout import Layout
from meshwright.spec.rules import check
from meshwright.units import format_memory

SHOWN = 4
"""Remedies that are told."""


@dataclass(frozen=True)
class Remedy:
    """One change, the layout with it, and the peak of its fullest rank."""

    change: str
    layout: Layout
    peak_bytes: int
    fits: bool


def remedies(numbers: Priced, memory_fraction: float) -> list[Remedy]:
    """Legal single changes that make the layout fit, least invasive first; if none does, the one that comes nearest."""
    ledger, found = numbers.ledger, list[Remedy]()
    for change, layout in _changes(ledger.layout):
        try:
            check(ledger.model, ledger.workload, layout, numbers.cluster)
        except InputError:
            continue
        peak = int(fullest(priced(ledger.model, numbers.cluster, ledger.workload, layout, ledger.stack)).peak_bytes)
        found.append(Remedy(change, layout, peak, bool(fits(peak, numbers.cluster, memory_fraction))))
    helpful = [remedy for remedy in found if remedy.fits]
    return helpful[:SHOWN] if helpful else sorted(found, key=lambda remedy: remedy.peak_bytes)[:1]


def remedies_in_words(found: list[Remedy]) -> str:
    """``it would fit with recompute=selective (61 GiB) or zero=3 (40 GiB)``."""
    if not found:
        return "no single change of the layout is legal here"
    words = [f"{remedy.change} ({format_memory(remedy.peak_bytes)})" for remedy in found]
    if not found[0].fits:
        return f"no single change makes it fit; {words[0]} comes nearest"
    return f"it would fit with {', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else f"it would fit with {words[0]}"


def _changes(layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Changes of one key; what needs more ranks takes them from dp."""
    if layout.tp > 1 and not layout.sp:
        yield "sp", replace(layout, sp=True)
    for recompute in ("selective", "full"):
        if recompute != layout.recompute or layout.recompute_layers is not None:
            yield f"recompute={recompute}", replace(layout, recompute=recompute, recompute_layers=None)
    for zero in range(layout.zero + 1, 4):
        yield f"zero={zero}", replace(layout, zero=zero)
    if layout.mb > 1:
        yield f"mb={layout.mb // 2}", replace(layout, mb=layout.mb // 2)
    for factor in (2, 4, 8):
        if layout.dp_shard % factor == 0:
            shard = layout.dp_shard // factor
            etp = layout.etp * factor if layout.etp == layout.tp else layout.etp
            yield f"tp={layout.tp * factor}", replace(layout, tp=layout.tp * factor, etp=etp, dp_shard=shard)
            if layout.stages is None:
                yield f"pp={layout.pp * factor}", replace(layout, pp=layout.pp * factor, dp_shard=shard)
            if layout.cp_kind in ("zigzag", "ring", "striped", "allgather"):
                yield f"cp={layout.cp * factor}", replace(layout, cp=layout.cp * factor, dp_shard=shard)
