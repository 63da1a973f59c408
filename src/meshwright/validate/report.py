"""``meshwright validate``: every run of a file judged, with summaries and, if asked, the same after calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from meshwright.spec.files import read_text
from meshwright.validate.calibrated import judge_calibrated
from meshwright.validate.judge import (
    Fit,
    Judged,
    Price,
    Skipped,
    fast_price,
    fit_of,
    judge,
    left_out,
    plain_price,
    questions_of,
    uncalibrated,
)
from meshwright.validate.measured import MemoryKind
from meshwright.validate.naive import naive_errors
from meshwright.validate.question import Question
from meshwright.validate.runs import read_runs
from meshwright.validate.summary import Errors, Ranking, by, errors, ranking


@dataclass(frozen=True, kw_only=True)
class Report:
    """The answer.

    Attributes:
        judged: every figure. skipped: rows without one. doubtful: ids of rows whose figures are in doubt, summed apart.
        fits: which runs were predicted to fit. naive: errors of constant utilisation.
        tables: every figure with constants from kernel tables alone.
        without_source: whether each source was priced with constants that were fitted without it.
        calibrated: figures of sources that had runs to spare for calibration, after it; fitted: the ids that it used.
    """

    judged: tuple[Judged, ...]
    skipped: tuple[Skipped, ...]
    doubtful: frozenset[str] = frozenset()
    calibrated: tuple[Judged, ...] = ()
    fitted: tuple[str, ...] = ()
    runs_to_fit: int = 0
    naive: dict[str, float] = field(default_factory=dict)
    tables: tuple[Judged, ...] = ()
    fits: tuple[Fit, ...] = ()
    without_source: bool = False

    def chosen(self, kind: str, judged: Sequence[Judged] | None = None, with_doubtful: bool = False) -> list[Judged]:
        """Figures of a kind: "time", "memory", times of complete rows, "dense" or "moe", or memory of one kind (measured.py's MemoryKind);
        doubtful rows only if asked."""
        rows = [one for one in (self.judged if judged is None else judged) if with_doubtful or one.id not in self.doubtful]
        if kind == "memory":
            return [one for one in rows if not one.is_time]
        if kind == "time":
            return [one for one in rows if one.is_time]
        if kind in get_args(MemoryKind):
            return [one for one in rows if not one.is_time and one.question.memory is not None and one.question.memory.kind == kind]
        return [one for one in rows if one.is_time and one.question.complete and one.question.dense == (kind == "dense")]

    def summary(self) -> dict[str, Any]:
        """The keys of DESIGN section 7, over every time; and the same for each kind, source and question of order."""
        overall = errors(self.chosen("time", with_doubtful=True)) or errors(self.judged)
        found: dict[str, Any] = {} if overall is None else overall.as_json()
        for kind in KINDS:
            for name, doubtful in ((kind, False), (f"{kind}_with_doubtful", True)):
                found[name] = _json(errors(self.chosen(kind, with_doubtful=doubtful)))
        found["by_source"] = {source: _json(errors(group)) for source, group in by(self.chosen("time"), lambda one: one.source).items()}
        found["ranking"] = _json(ranking(self.chosen("time")))
        found["constant_utilisation"] = self.naive
        found["kernel_tables_only"] = _json(errors(self.chosen("dense", self.tables)))
        found["without_source"] = self.without_source
        found["fits"] = self.fit_counts
        if self.runs_to_fit:
            found["calibrated"] = {
                "runs": self.runs_to_fit,
                **{kind: _json(errors(self.chosen(kind, self.calibrated))) for kind in KINDS},
                "before": {kind: _json(errors(self.chosen(kind, self.same_before))) for kind in KINDS},
            }
        return found

    @property
    def fit_counts(self) -> dict[str, int]:
        """Runs that ran, and of them those predicted to; runs that did not fit, and of them those predicted not to.

        Rows that do not say what they recompute are left out.
        """
        ran, out = [one for one in self.fits if one.ran], [one for one in self.fits if not one.ran]
        return {
            "ran": len(ran), "predicted_to_run": sum(one.fits for one in ran),
            "out_of_memory": len(out), "predicted_out_of_memory": sum(not one.fits for one in out),
        }  # fmt: skip

    @property
    def same_before(self) -> list[Judged]:
        """The figures that were judged after calibration, before it."""
        kept = {(one.id, one.metric) for one in self.calibrated}
        return [one for one in self.judged if (one.id, one.metric) in kept]

    def as_json(self) -> dict[str, Any]:
        """The keys of DESIGN section 7; calibrated figures beside them."""
        found: dict[str, Any] = {
            "runs": [{**one.as_json(), "doubtful": one.id in self.doubtful} for one in self.judged],
            "skipped": [vars(one) for one in self.skipped],
            "fits": [one.as_json() for one in self.fits if not (one.ran and one.fits)],
            "summary": self.summary(),
        }
        if self.runs_to_fit:
            found["calibrated"] = [one.as_json() for one in self.calibrated]
        return found


KINDS = ("dense", "moe", "memory", "allocated")


def _json(found: Errors | Ranking | None) -> dict[str, Any] | None:
    return None if found is None else found.as_json()


def validate(
    path: Path, calibrate: int = 0, seed: int = 0, without_source: bool = False, price: Price = plain_price
) -> Report:  # fmt: skip
    """Judge every run of a file; ``published_runs_doubtful.csv`` beside ``published_runs.csv`` says which rows are in doubt.

    Args:
        calibrate: fit so many runs of each source, and judge the rest again. seed: of their choice.
        without_source: price each source with the constants that were fitted without it, where the catalog has them.

    Raises:
        InputError: the file is not a table of runs.
    """
    questions, skipped = questions_of(read_runs(path))
    if without_source:
        questions = [left_out(question) for question in questions]
    judged, doubtful = judge_all(questions, price), doubtful_ids(path)
    tables = judge_all([uncalibrated(question) for question in questions], fast_price)
    again, used = judge_calibrated(judged, doubtful, calibrate, seed, price) if calibrate else ([], ())
    return Report(
        judged=tuple(judged), skipped=tuple(skipped), doubtful=doubtful, calibrated=tuple(again), fitted=used, runs_to_fit=calibrate,
        naive=_naive(judged), tables=tuple(tables), fits=tuple(fit_of(q, fast_price) for q in questions if q.says_recompute),
        without_source=without_source,
    )  # fmt: skip


def judge_all(questions: Sequence[Question], price: Price = plain_price) -> list[Judged]:
    """The figures of many runs."""
    return [figure for question in questions for figure in judge(question, price)]


def doubtful_ids(path: Path) -> frozenset[str]:
    """Ids in the file of doubts beside a table, none if there is no such file."""
    beside = path.with_name(f"{path.stem}_doubtful{path.suffix}")
    if not beside.is_file():
        return frozenset()
    import csv
    import io

    text = read_text(beside, "a table of doubts (CSV)")
    return frozenset(row["id"] for row in csv.DictReader(io.StringIO(text)) if row.get("id"))


def _naive(judged: Sequence[Judged]) -> dict[str, float]:
    """Mean, median and p90 of constant utilisation on the complete dense rows."""
    size = np.abs(naive_errors([one for one in judged if one.question.complete and one.question.dense]))
    if not len(size):
        return {}
    return {"mape": float(size.mean()), "median": float(np.median(size)), "p90": float(np.quantile(size, 0.9))}
