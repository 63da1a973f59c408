"""One estimate as a short report, several as one table with the differences in words."""

from __future__ import annotations

from meshwright.estimate import Estimate
from meshwright.explain.compare import Comparison, Difference
from meshwright.render.text import Column, facts, table, wrapped
from meshwright.units import format_memory, format_seconds

PART_WORDS = {
    "compute_s": "compute", "recompute_s": "recomputed forward", "tp_s": "tp collectives", "cp_s": "cp collectives",
    "ep_s": "ep collectives", "pp_s": "pp messages", "bubble_s": "waiting for other stages", "dp_s": "dp collectives",
    "optimizer_s": "optimizer", "other_s": "host, token count and norm",
}  # fmt: skip

ROUNDING = 1e-9
"""Parts below this share are what rounding leaves of a difference that is zero."""

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def estimate_text(found: Estimate, verdict: str) -> str:
    """Step time, its parts, MFU, memory; ``verdict`` says whether it fits."""
    rows = [
        [PART_WORDS[part], format_seconds(seconds), f"{seconds / found.step_s:.1%}", "#" * round(40 * seconds / found.step_s)]
        for part, seconds in found.parts.items()
        if seconds > ROUNDING * found.step_s
    ]
    rows.append(["step", format_seconds(found.step_s), "100%", ""])
    columns: list[Column | str] = [
        Column("exposed part of a step", fold=False),
        Column("time", right=True, fold=False),
        Column("share", right=True),
        "",
    ]
    low, high = format_seconds(found.step_s_low), format_seconds(found.step_s_high)
    pairs = [
        ("range", f"{low} to {high}"),
        ("MFU", f"{found.mfu:.1%}, convention {found.mfu_convention}"),
        ("throughput", f"{found.tokens_per_s_per_gpu:,.0f} tokens/s per GPU"),
        *([("bubble", f"{found.bubble_fraction:.1%} of the pipeline's time, the mean of its ranks")] if found.layout.pp > 1 else []),
        ("memory", verdict),
        *(("assumed" if index == 0 else "", words) for index, words in enumerate(found.assumed)),
    ]
    notes = ["", *facts(pairs)]
    title = f"{format_seconds(found.step_s)} a step on {found.layout.world_size:,} GPUs: {found.layout}"
    return table(title, columns, rows, notes=notes)


def comparison_text(found: Comparison) -> str:
    """A line per layout, then what separates each from the best."""
    names = [name_of(index) for index in range(len(found.estimates))]
    legend = [f"  {name}  {estimate.layout}" for name, estimate in zip(names, found.estimates, strict=True)]
    used = [part for part in PART_WORDS if any(estimate.parts[part] / estimate.step_s > 5e-4 for estimate in found.estimates)]
    columns: list[Column | str] = [
        Column("", fold=False), Column("step", right=True, fold=False), *(Column(part.removesuffix("_s"), right=True) for part in used),
        Column("MFU", right=True), Column("memory", right=True, fold=False), "fits",
    ]  # fmt: skip
    rows = [
        [name, format_seconds(one.step_s), *(_part(one, part) for part in used),
         f"{one.mfu:.1%}", format_memory(one.memory_bytes), "yes" if one.fits else "no"]
        for name, one in zip(names, found.estimates, strict=True)
    ]  # fmt: skip
    convention = found.estimates[0].mfu_convention
    notes = [
        f"Seconds exposed in a step; MFU by convention {convention}.",
        *(line for each in found.differences for line in _words(found, each)),
    ]
    return table("\n".join([f"{len(names)} layouts", *legend]), columns, rows, notes=["", *notes])


def _part(found: Estimate, part: str) -> str:
    seconds = found.parts[part]
    return format_seconds(seconds) if seconds > ROUNDING * found.step_s else "-"


def name_of(index: int) -> str:
    """A, B, ... Z, then numbers."""
    return LETTERS[index] if index < len(LETTERS) else str(index + 1)


def _words(found: Comparison, difference: Difference) -> list[str]:
    best, other = found.estimates[difference.against], found.estimates[difference.layout]
    longer = f"{format_seconds(abs(difference.step_s))} ({abs(difference.step_s) / best.step_s:.1%})"
    way = "longer" if difference.step_s >= 0 else "less"
    fits = "" if other.fits else " and does not fit"
    head = f"{name_of(difference.layout)} takes {longer} {way} than {name_of(difference.against)}{fits}:"
    return ["", head, *(line for words in difference.words for line in wrapped(words, "  "))]
