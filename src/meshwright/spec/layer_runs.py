"""The kinds of a model's layers as short text: ``3 x dense``, ``18 x (moe window=128, moe)``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from meshwright.spec.model import LARGEST_LAYERS, LayerKind
from meshwright.spec.tables import LARGEST_SIZE, Table

__all__ = ["parse_layers", "print_layers", "read_layers"]

LAYERS_LEGAL = 'an array of runs such as "3 x dense", "58 x moe", "18 x (moe window=128, moe)"'

_KIND = r"(?:dense|moe)(?: window=[0-9]{1,9})?"
_RUN = re.compile(rf"(?:([0-9]{{1,6}}) x )?(?:({_KIND})|\(({_KIND}(?:, {_KIND})*)\))")
_LONGEST_CYCLE = 16


def print_layers(layers: Sequence[LayerKind]) -> list[str]:
    """The runs that ``parse_layers`` reads back: one repeated cycle if there is a short one, else run lengths."""
    labels = [kind.label for kind in layers]
    for length in range(1, min(_LONGEST_CYCLE, len(labels) // 2) + 1):
        times, rest = divmod(len(labels), length)
        if not rest and labels == labels[:length] * times:
            return [_print_run(times, labels[:length])]
    return [_print_run(len(list(run)), [label]) for label, run in groupby(labels)]


def parse_layers(runs: Iterable[str]) -> tuple[LayerKind, ...]:
    """One LayerKind for each decoder layer, in order. Raises ValueError where a run is not understood or too long."""
    layers: list[LayerKind] = []
    for run in runs:
        match = _RUN.fullmatch(run)
        if match is None:
            raise ValueError(f"{run!r} is not a run of layers")
        cycle = [_parse_kind(kind) for kind in (match[2] or match[3]).split(", ")]
        times = int(match[1] or 1)
        if times < 1 or len(layers) + times * len(cycle) > LARGEST_LAYERS:
            raise ValueError(f"{run!r} does not leave 1 to {LARGEST_LAYERS} layers")
        layers += cycle * times
    if not layers:
        raise ValueError("no layers")
    return tuple(layers)


def read_layers(table: Table, key: str) -> tuple[LayerKind, ...]:
    """The runs under ``key``; one dense layer, with the mistake noted, where they are not legal."""
    runs = table.texts(key)
    if table.sound(key):
        try:
            return parse_layers(runs)
        except ValueError as error:
            table.note(key, LAYERS_LEGAL, problem=f"is not understood: {error}")
    return (LayerKind(),)


def _print_run(times: int, labels: list[str]) -> str:
    cycle = labels[0] if len(labels) == 1 else f"({', '.join(labels)})"
    return f"{times} x {cycle}"


def _parse_kind(text: str) -> LayerKind:
    block, _, window = text.partition(" window=")
    if window and not 1 <= int(window) <= LARGEST_SIZE:
        raise ValueError(f"a window of {window} tokens")
    return LayerKind(window=int(window) if window else None, moe=block == "moe")
