"""Write fitted curves as a table that ``spec/load_network.py`` reads and a human can check."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields

from meshwright.calibrate.network import Fit, median_error


def table(name: str, fits: Sequence[Fit], source: str, comment: str = "") -> str:
    """The text of a network table: one ``[[curve]]`` for each fit, numbers with four digits, errors in parts of one.

    ``source`` says where the points come from, ``comment`` goes on top.
    """
    head = [f"# {line}" for line in comment.splitlines()]
    return "\n".join([*head, f"name = {json.dumps(name)}", *(line for fit in fits for line in _curve_lines(fit, source))]) + "\n"


def _curve_lines(fit: Fit, source: str) -> list[str]:
    sizes = [point.payload_bytes for point in fit.points]
    lines = [
        "",
        "[[curve]]",
        f"op = {json.dumps(fit.op)}",
        f"algorithm = {json.dumps(fit.algorithm)}",
        f"nodes = {max(point.nodes for point in fit.points)}",
        f"ranks = {sorted({point.ranks for point in fit.points})}",
        f"payload_bytes = [{min(sizes):.0f}, {max(sizes):.0f}]",
    ]
    for field in fields(fit.curve):
        value = getattr(fit.curve, field.name)
        if value is not None:
            lines.append(f"{field.name} = {value:.4g}")
    lines += [f"points = {len(fit.points)}", f"median_error = {median_error(fit.errors):.3f}"]
    if fit.left_out_size_errors:
        lines.append(f"left_out_error = {median_error(fit.left_out_size_errors):.3f}")
    return [*lines, f"source = {json.dumps(source)}"]
