"""The figures of docs/validation.md, as docs/validation_figures.json; a test holds them equal to what the code says.

    python benchmarks/validation_figures.py RUNS.csv [--ablate]

Every source is priced with the constants that were fitted without it. ``--ablate`` also refits without each part of the time
model (some minutes); without it the file keeps the figures that it has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from fit_efficiency import Fit

from meshwright.calibrate.least_squares import Array, solve
from meshwright.calibrate.steps import FREE, PRIORS, SPREADS, position_of
from meshwright.spec.efficiency import fitted
from meshwright.validate.calibrated import judge_calibrated
from meshwright.validate.judge import Judged, fast_price
from meshwright.validate.measured import MemoryKind
from meshwright.validate.report import Report, validate
from meshwright.validate.summary import by, errors, ranking

OUT = Path(__file__).resolve().parent.parent / "docs" / "validation_figures.json"
SEEDS = tuple(range(10))
NOTHING = 1e-9

TERMS: dict[str, dict[str, float]] = {
    "host launching kernels": {"host_layer_s": NOTHING, "host_moe_s": NOTHING, "host_s": NOTHING, "launch_s": NOTHING},
    "power limit of the board": {"power": NOTHING},
    "shape of 16-bit products": {"half_m": NOTHING, "half_n": NOTHING, "half_k": NOTHING},
    "shape of 8-bit products, casts": {"fp8_half_n": NOTHING, "fp8_half_k": NOTHING, "quantise": NOTHING},
    "sequence and head dim of attention": {"half_seq": NOTHING, "half_head": NOTHING},
    "generations of attention kernels": {
        "flash_1": 0.6,
        "flash_2": 0.6,
        "flash_2_hopper": 0.6,
        "flash_3_hopper": 0.6,
        "flash_blackwell": 0.6,
    },
    "eager chains": {"unfused": 1.0},
    "collectives slower than in benchmarks": dict.fromkeys(("tp", "dp_inside", "dp_across", "ep", "cp", "pp"), 1.0),
    "hidden traffic slowing compute": {"contention": NOTHING},
    "asynchronous tp": {"async_tp": 1.0},
    "optimizer's passes": {"optimizer": NOTHING},
}
"""What a part of the model is without: its constants at the value at which it does nothing, or tells nothing apart."""


def spread_of(judged: list[Judged]) -> dict[str, Any] | None:
    """Errors, rounded as the page prints them."""
    found = errors(judged)
    return None if found is None else {key: round(float(value), 4) for key, value in found.as_json().items()}


def groups(judged: list[Judged], key: Callable[[Judged], str]) -> dict[str, Any]:
    return {name: spread_of(group) for name, group in sorted(by(judged, key).items())}


def family(one: Judged) -> str:
    """The first word of the model's name: GPT, Llama, MPT, Qwen."""
    name = one.question.model.name.lower().replace("_", "-")
    known = ("llama", "gpt-oss", "gpt", "mpt", "deepseek", "qwen", "mixtral", "internal moe")
    return next((word for word in known if name.startswith(word)), name.split("-")[0])


def figures(path: Path) -> dict[str, Any]:
    """Everything but the ablation."""
    report = validate(path, 0, without_source=True, price=fast_price)
    found: dict[str, Any] = {"constants": len(FREE), "naive": {key: round(value, 4) for key, value in report.naive.items()}}
    found["tables_only"] = spread_of(report.chosen("dense", report.tables))
    for kind in ("dense", "moe"):
        found[kind] = spread_of(report.chosen(kind))
        found[f"{kind}_with_doubtful"] = spread_of(report.chosen(kind, with_doubtful=True))
    times = report.chosen("time", with_doubtful=True)
    found["by_source"] = groups(times, lambda one: one.source)
    found["by_source_clean"] = groups(report.chosen("time"), lambda one: one.source)
    found["by_device"] = groups(report.chosen("time"), lambda one: one.question.cluster.device.name)
    found["by_family"] = groups(report.chosen("time"), family)
    found["memory"] = groups(report.chosen("memory", with_doubtful=True), lambda one: one.source)
    order = ranking(report.chosen("time"))
    found["ranking"] = {} if order is None else {key: round(value, 4) for key, value in order.as_json().items()}
    found["fits"] = report.fit_counts
    found["worst"] = worst(report)
    found["calibrated"] = calibrated(report)
    return found


def worst(report: Report) -> list[dict[str, Any]]:
    """The ten timed rows that say everything and are not in doubt with the largest errors, by the logarithm."""
    rows = [*report.chosen("dense"), *report.chosen("moe")]
    rows.sort(key=lambda one: -abs(float(np.log(one.step_s / (one.question.time.step_s or 1.0)))))  # type: ignore[union-attr]
    return [
        {
            "id": one.id, "model": one.question.model.name, "layout": str(one.question.layout), "device": one.question.cluster.device.name,
            "measured_s": round(one.question.time.step_s, 3), "predicted_s": round(one.step_s, 3),  # type: ignore[union-attr, arg-type]
        }
        for one in rows[:10]
    ]  # fmt: skip


def calibrated(whole: Report) -> dict[str, Any]:
    """Means over SEEDS of the errors before and after calibration on three runs."""
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in SEEDS:
        again, used = judge_calibrated(whole.judged, whole.doubtful, 3, seed, fast_price)
        report = replace(whole, calibrated=tuple(again), fitted=used, runs_to_fit=3)
        for kind in ("dense", "moe", *get_args(MemoryKind)):
            for name, rows in ((kind, report.chosen(kind, report.calibrated)), (f"{kind}_before", report.chosen(kind, report.same_before))):
                if (one := spread_of(rows)) is not None:
                    width = float(np.mean([np.log(row.high / row.low) / 2 for row in rows]))
                    found.setdefault(name, []).append({**one, "half_width": width})
    return {name: {key: round(float(np.mean([one[key] for one in rows])), 4) for key in rows[0]} for name, rows in found.items()}


def ablation(path: Path) -> dict[str, Any]:
    """Dense errors of left-out sources with each part of the model taken out and the rest fitted again."""
    fit = Fit(path)
    start = np.concatenate([position_of(fitted()), np.zeros(len(fit.sources))])
    base = solve(fit.residuals, start, weights=fit.weight, iterations=2)
    found = {"whole model": _left_out_errors(fit, base.x, base.jacobian, np.zeros(len(start), dtype=bool))}
    for term, values in TERMS.items():
        x, fixed = base.x.copy(), np.zeros(len(start), dtype=bool)
        for name, value in values.items():
            index = FREE.index(name)
            x[index], fixed[index] = np.log(value / PRIORS[index]) / SPREADS[index], True
        found[term] = _left_out_errors(fit, x, base.jacobian * ~fixed, fixed)
        print(term, found[term])
    return found


def _left_out_errors(fit: Fit, x: Array, jacobian: Array, fixed: Any) -> dict[str, float]:
    """Mean and median, and the mean after a level for each source; what is fixed does not count as far from its prior."""
    free, count = ~fixed, len(FREE)

    def residuals(part: Array) -> Array:
        whole = x.copy()
        whole[free] = part
        return fit.residuals(whole)

    errors_left: list[float] = []
    with_level: list[float] = []
    dense = np.array([question.dense and question.complete for question in fit.steps.questions]) & (fit.weight > 0)
    for index, _ in enumerate(fit.sources):
        weight = fit.weight * (fit.source != index)
        other = solve(residuals, x[free], weights=weight, iterations=3, jacobian=jacobian[:, free])
        whole = x.copy()
        whole[free] = other.x
        own = (fit.source == index) & dense
        logs = (fit.steps.log_s(whole[:count]) - fit.steps.measured)[own]
        if len(logs):
            errors_left += list(np.abs(np.exp(logs) - 1))
            with_level += list(np.abs(np.exp(logs - np.median(logs)) - 1))
    return {name: round(float(np.mean(rows)), 4) for name, rows in (("left_out", errors_left), ("with_level", with_level))}


def main() -> None:
    path = Path(sys.argv[1])
    old = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    found = figures(path)
    found["ablation"] = ablation(path) if "--ablate" in sys.argv else old.get("ablation", {})
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
