"""The answers of ``meshwright calibrate`` as text: what was fitted, and how far prices were off before and are now."""

from __future__ import annotations

from meshwright.calibrate.measurement import Calibration
from meshwright.calibrate.runs import CalibratedStack
from meshwright.render.text import Column, table
from meshwright.spec.efficiency import CONSTANTS
from meshwright.units import format_number_of, format_rate, format_seconds


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
    title = f"{found.cluster.name}: {found.base.name} with {format_number_of(len(rows), 'curve')} fitted to {found.points} points"
    notes = ["", "error: median over the points, of the price that plans are made with"]
    return table(title, ["tier", "curve", *numbers, *errors], rows, notes=notes)


def calibrated_stack_text(found: CalibratedStack) -> str:
    """The constants that moved, the level, and the errors before and after."""
    columns: list[Column | str] = ["constant", Column("before", right=True), Column("now", right=True), "what it is"]
    rows = [(name, f"{before:.4g}", f"{after:.4g}", CONSTANTS[name].meaning) for name, before, after in found.changed]
    left_out = "" if found.left_out is None else f", {found.left_out:.1%} for each run under the fit to the others"
    notes = [
        "",
        f"level: every step takes {found.stack.level:.3f} times as long as these say",
        f"error of the runs: {found.before:.1%} before, {found.after:.1%} now{left_out}",
        f"spread of the next run: {found.stack.spread:.1%}, one standard deviation",
    ]
    notes += [f"not fitted: {name}: {why}" for name, why in found.skipped]
    return table(f"{found.stack.name}: {found.stack.framework} fitted to {len(found.runs)} runs", columns, rows, notes=notes)
