"""The answer of ``meshwright calibrate`` as text: what was fitted, and how far prices were off before and are now."""

from __future__ import annotations

from meshwright.calibrate.measurement import Calibration
from meshwright.render.text import Column, table
from meshwright.units import format_rate, format_seconds


def calibrated_text(found: Calibration) -> str:
    """One row for each curve."""
    numbers = [Column(header, right=True) for header in ("ranks", "points", "launch", "step", "bandwidth", "half at")]
    errors = [Column(header, right=True) for header in ("error before", "error now", "sizes left out")]
    rows = []
    for one in found.curves:
        curve = one.curve
        left_out = "" if curve.left_out_error is None else f"{curve.left_out_error:.1%}"
        rows.append([
            one.tier, f"{curve.op} {curve.algorithm}", ", ".join(map(str, curve.ranks)), curve.points, format_seconds(curve.launch_s),
            format_seconds(curve.step_latency_s), format_rate(curve.bandwidth_bytes_per_s), f"{curve.half_bytes / 1e6:.2f} MB",
            f"{one.before:.1%}", f"{one.after:.1%}", left_out,
        ])  # fmt: skip
    title = f"{found.cluster.name}: {found.base.name} with {len(rows)} curves fitted to {found.points} points"
    notes = ["", "error: median over the points, of the price that plans are made with"]
    return table(title, ["tier", "curve", *numbers, *errors], rows, notes=notes)
