"""Are the inputs numbers and words of the right kind at all? Asked first: the rules divide by degrees.

Inputs from files and from the command line were read with the same bounds; this is for layouts, models and workloads
that were built in Python.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Mistake
from meshwright.spec.layout import CP_KINDS, ORDER_AXES, RECOMPUTES, SCHEDULES, TWO_CHUNK_SCHEDULES, ZERO_VARIANTS, Layout
from meshwright.spec.model import Model
from meshwright.spec.rules.rule import Case
from meshwright.spec.workload import PRECISIONS, Training

MOST = 10**8
"""Bound of every size: above what any model or cluster has, and low enough that products of two stay exact."""

MOST_LAYERS = 10**5

DEGREES = ("tp", "cp", "ulysses", "pp", "virtual_stages", "ep", "etp", "dp_replicate", "dp_shard", "mb", "vocab_pad")


def form_mistakes(case: Case, file: str) -> list[Mistake]:
    """Everything of the wrong type, out of range, or at odds with another key of the same input."""
    found = [*_layout_numbers(case.layout, file), *_layout_words(case.layout, file)]
    if not found:
        found += _layout_agreement(case.layout, file)
    found += [*_model(case.model), *_workload(case)]
    return found


def _layout_numbers(layout: Layout, file: str) -> Iterator[Mistake]:
    for key in DEGREES:
        if key != "etp" or layout.etp != layout.tp:  # etp follows tp where it was not given: one mistake, not two
            yield from _in_range(file, key, getattr(layout, key), 1, MOST)
    yield from _in_range(file, "zero", layout.zero, 0, 3)
    if layout.recompute_layers is not None:
        yield from _in_range(file, "recompute", layout.recompute_layers, 1, MOST_LAYERS)
    if layout.stages is not None:
        if not isinstance(layout.stages, tuple) or not layout.stages:
            yield Mistake(file, "stages", layout.stages, "a tuple of numbers of layers")
        else:
            for layers in layout.stages:
                yield from _in_range(file, "stages", layers, 0, MOST_LAYERS)


def _layout_words(layout: Layout, file: str) -> Iterator[Mistake]:
    legal = {"cp_kind": CP_KINDS, "schedule": SCHEDULES, "zero_variant": ZERO_VARIANTS, "recompute": RECOMPUTES}
    for key, words in legal.items():
        if getattr(layout, key) not in words:
            yield Mistake(file, key, getattr(layout, key), " ".join(words).strip())
    for key in ("sp", "vocab"):
        if not isinstance(getattr(layout, key), bool):
            yield Mistake(file, key, getattr(layout, key), "on or off (True or False)")
    if not isinstance(layout.order, str) or sorted(layout.order.split("-")) != sorted(ORDER_AXES):
        yield Mistake(file, "order", layout.order, f"the axes {' '.join(ORDER_AXES)} joined by -, innermost first")


def _layout_agreement(layout: Layout, file: str) -> Iterator[Mistake]:
    """Keys that say parts of one thing: the context method and its ulysses part, the schedule and its chunks."""
    if layout.world_size > MOST:
        yield Mistake(file, "gpus", layout.world_size, f"up to {MOST}", "smaller degrees", "ranks are more than anybody has")
    whole = {"ulysses": layout.cp, "usp": layout.ulysses}.get(layout.cp_kind, 1)
    if layout.ulysses != whole or layout.cp % layout.ulysses:
        words = {"ulysses": f"cp = {layout.cp}", "usp": f"a divisor of cp = {layout.cp}"}
        yield Mistake(file, "ulysses", layout.ulysses, words.get(layout.cp_kind, "1"), problem=f"does not fit cp kind {layout.cp_kind}")
    chunks, expected = layout.virtual_stages, 2 if layout.schedule in TWO_CHUNK_SCHEDULES else 1
    if (layout.schedule == "interleaved" and chunks < 2) or (layout.schedule != "interleaved" and chunks != expected):
        legal = "2 or more" if layout.schedule == "interleaved" else str(expected)
        yield Mistake(file, "virtual_stages", chunks, f"{legal} with {layout.schedule}")
    if layout.zero_variant and layout.zero != 3:
        yield Mistake(file, "zero", f"{layout.zero}:{layout.zero_variant}", "0 1 2 3 3:local 3:keep", problem="has a variant of zero=3")
    if layout.recompute_layers is not None and layout.recompute != "full":
        yield Mistake(file, "recompute", f"{layout.recompute}={layout.recompute_layers}", "none selective full full=n")


def _model(model: Model) -> Iterator[Mistake]:
    file, attention = f"model {model.name}", model.attention
    yield from _in_range(file, "num_layers", len(model.layers), 1, MOST_LAYERS)
    sizes: dict[str, object] = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_heads": attention.num_heads,
        "num_kv_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
    }
    if any(not kind.moe for kind in model.kinds):
        sizes["ffn_size"] = model.ffn_size
    if model.moe is not None:
        moe = model.moe
        sizes |= {"num_experts": moe.num_experts, "top_k": moe.top_k, "expert_ffn_size": moe.expert_ffn_size}
        yield from _in_range(file, "shared_ffn_size", moe.shared_ffn_size, 0, MOST)
    for key, size in sizes.items():
        yield from _in_range(file, key, size, 1, MOST)


def _workload(case: Case) -> Iterator[Mistake]:
    for key in ("seq", "batch"):
        yield from _in_range(f"--{key}", key, getattr(case.workload, key), 1, MOST)
    if case.gpus is not None:
        yield from _in_range("--gpus", "gpus", case.gpus, 1, MOST)
    if isinstance(case.workload, Training) and case.workload.precision not in (None, *PRECISIONS):
        yield Mistake("--precision", "precision", case.workload.precision, " ".join(PRECISIONS))


def _in_range(file: str, key: str, value: object, low: int, high: int) -> Iterator[Mistake]:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        yield Mistake(file, key, value, f"a whole number from {low} to {high}")
