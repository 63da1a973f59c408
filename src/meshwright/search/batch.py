"""Whether the batch lets the GPUs work side by side: data-parallel ranks must divide both the GPUs and the batch."""

from __future__ import annotations

from meshwright.spec.rules.candidates import divisors
from meshwright.spec.rules.rule import LayoutWarning

WORTH_SAYING = 4
"""Times fewer data-parallel ranks than the batch has sequences for, from which on the batch decides the layout."""


def awkward_batch(batch: int, gpus: int) -> LayoutWarning | None:
    """What to say of a batch that splits over few data-parallel ranks only, e.g. 36 sequences on 64 GPUs over 4."""
    widest = _widest(batch, gpus)
    possible = max(d for d in divisors(gpus) if d <= batch)
    if widest * WORTH_SAYING > possible:
        return None
    near = max(1, round(batch / possible)) * possible
    return LayoutWarning(
        code="awkward-batch",
        message=f"batch = {batch:,} splits evenly over {widest:,} data-parallel ranks of {gpus:,} GPUs at most, so more must share each "
        "sequence",
        remedy=f"a batch of {near:,} could be split over {_widest(near, gpus):,}",
    )


def _widest(batch: int, gpus: int) -> int:
    """The most data-parallel ranks."""
    return max(d for d in divisors(gpus) if batch % d == 0)
