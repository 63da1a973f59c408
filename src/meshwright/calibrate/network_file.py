"""Fitted curves in the form that ``spec/load_network.py`` reads: constants with four digits, errors with three places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.calibrate.network import Fit, median_error
from meshwright.spec.network import Curve, MeasuredCurve
from meshwright.spec.plain_data import to_table
from meshwright.spec.toml_writer import toml_text

FIRST = ("op", "algorithm", "nodes", "ranks", "payload_bytes")
"""Keys at the head of a curve, before its constants."""


def measured(fit: Fit, source: str) -> MeasuredCurve:
    """A fit with what a reader wants to know of it; ``source`` says where the points come from."""
    sizes = [point.payload_bytes for point in fit.points]
    return MeasuredCurve(
        op=fit.op, algorithm=fit.algorithm, nodes=max(point.nodes for point in fit.points),
        ranks=tuple(sorted({point.ranks for point in fit.points})), payload_bytes=(int(min(sizes)), int(max(sizes))),
        points=len(fit.points), median_error=round(median_error(fit.errors), 3),
        left_out_error=round(median_error(fit.left_out_size_errors), 3) if fit.left_out_size_errors else None,
        source=source, **{name: _four_digits(getattr(fit.curve, name)) for name in Curve.__dataclass_fields__},
    )  # fmt: skip


def _four_digits(value: float | None) -> Any:
    return None if value is None else float(f"{value:.4g}")


def curve_table(curve: MeasuredCurve) -> dict[str, Any]:
    """The keys of a ``[[curve]]``, in the order in which they are read best."""
    values = to_table(curve)
    return {**{key: values[key] for key in FIRST}, **values}


def table(name: str, fits: Sequence[Fit], source: str, comment: str = "") -> str:
    """The text of a network table: one ``[[curve]]`` for each fit; ``comment`` goes on top."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    return head + toml_text({"name": name, "curve": [curve_table(measured(fit, source)) for fit in fits]})
