"""The verbs that need no job, as functions: they look at files of measurements, at folders, or at the catalog. api.py offers them.

Mistakes are raised as one ``InputError`` with the name of the call where a command line would be named.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from meshwright.errors import InputError, Mistake

if TYPE_CHECKING:
    from meshwright.calibrate.measurement import Calibration
    from meshwright.calibrate.runs import CalibratedStack
    from meshwright.catalog import Kind
    from meshwright.collectives.experts.report import ExpertReport
    from meshwright.collectives.question import CollectiveAnswer, ShownSteps
    from meshwright.collectives.report import CollectiveReport
    from meshwright.diagnose.watch import Watched
    from meshwright.spec.cluster import Cluster
    from meshwright.spec.model import Model
    from meshwright.validate.report import Report

__all__ = ["calibrate", "calibrated", "catalog", "collectives", "validate", "watch"]


def validate(runs: str | Path, *, calibrate: int = 0, seed: int = 0, without_source: bool = False) -> Report:
    """Predictions held against the runs of a table; see ``meshwright validate --help`` for its columns.

    Args:
        calibrate: fit so many runs of each source, chosen by ``seed``, and judge the rest once more; 0 for none.
        without_source: price each source with constants that were fitted without its runs.

    Raises:
        InputError: the file is not a table of runs, or a number is none.
    """
    from meshwright.validate.report import validate as judged

    wrong = [
        Mistake("validate()", name, value, "a whole number from 0 to 10^8")
        for name, value in (("calibrate", calibrate), ("seed", seed))
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**8
    ]
    if wrong:
        raise InputError(wrong)
    return judged(Path(runs), calibrate, seed, without_source)


def calibrate(
    *files: str | Path, output: str | Path | None = None, cluster: str | Path | None = None, op: str | None = None, ranks: int | None = None
) -> Calibration | CalibratedStack:
    """A cluster's network fitted to measured collectives, or, of one table of runs (``.csv``), a stack fitted to its steps.

    Args:
        files: what nccl-tests or rccl-tests printed, bench.jsonl, or one table as for ``validate``.
        output: the TOML file to write; None to write none, and take ``answer.text``.
        cluster: what was measured. op, ranks: for output that does not say them.

    Raises:
        InputError: everything that is wrong with the files; the measurements do not fit together.
    """
    paths = [Path(file) for file in files]
    if not paths:
        raise InputError([Mistake("calibrate()", "files", None, "one or more files of measurements", problem="are missing")])
    return calibrated(paths, None if output is None else Path(output), None if cluster is None else str(cluster), op, ranks)


def calibrated(
    files: Sequence[Path], output: Path | None, cluster: str | None, op: str | None, ranks: int | None, source: str = "calibrate()",
    key: str = "output",
) -> Calibration | CalibratedStack:  # fmt: skip
    """What ``calibrate`` does, by command line or from Python; ``source`` and ``key`` name the output in mistakes."""
    from meshwright.calibrate.measurement import fit_files
    from meshwright.calibrate.runs import fit_runs
    from meshwright.spec.files import write_text

    if output is not None and output.suffix.lower() != ".toml":
        hint = f"{output.stem or 'mine'}.toml; --cluster and --stack know a file by it"
        raise InputError([Mistake(source, key, str(output), "the name of a TOML file, ending in .toml", hint)])
    name = "calibrated" if output is None else output.stem
    of_runs = len(files) == 1 and files[0].suffix.lower() == ".csv"
    found = fit_runs(files[0], name) if of_runs else fit_files(files, name, cluster, op, ranks)
    if output is not None:
        write_text(output, found.text)
    return found


@overload
def collectives(
    op: str | None = None, *, show: Literal[True], ranks: int | None = None, cluster: str | Path | Cluster | None = None,
    algorithm: str | None = None,
) -> ShownSteps: ...  # fmt: skip
@overload
def collectives(
    op: str | None = None, *, experts: str | Path | Model, ranks: int | None = None, cluster: str | Path | Cluster,
    tokens: int | None = None, load: str | Path | None = None,
) -> ExpertReport: ...  # fmt: skip
@overload
def collectives(
    op: str | None = None, *, size: int | None = None, ranks: int | None = None, cluster: str | Path | Cluster | None = None,
    run: bool = False,
) -> tuple[CollectiveReport, ...]: ...  # fmt: skip
def collectives(
    op: str | None = None, *, size: int | None = None, ranks: int | None = None, cluster: str | Path | Cluster | None = None,
    run: bool = False, show: bool = False, algorithm: str | None = None, experts: str | Path | Model | None = None,
    tokens: int | None = None, load: str | Path | None = None,
) -> CollectiveAnswer:  # fmt: skip
    """Every algorithm of a collective with its steps, bytes and, on a cluster, seconds: a report for ``op``, or for each of the four.

    Args:
        size: payload bytes. ranks: neighbours, by default those of a node. run: on local processes, against torch's own.
        show: the steps of one ``algorithm`` in place of reports. experts: a model, to whose experts ``tokens`` of each rank go under
            a ``load``: the ways to send them, in place of reports.

    Raises:
        InputError: everything that is wrong with the arguments.
    """
    from meshwright.collectives.question import CollectiveQuestion, ask

    question = CollectiveQuestion(
        op=op, size=size, ranks=ranks, cluster=cluster, run=run, show=show, algorithm=algorithm, experts=experts, tokens=tokens,
        load=None if load is None else Path(load), source="collectives()",
    )  # fmt: skip
    return ask(question)


def watch(folder: str | Path, *, every: float = 5, patience: float | None = None, limit: float | None = None) -> Watched:
    """Wait until a rank falls behind that writes its progress to ``folder``: ``answer.behind`` names it, and is empty if none did.

    Args:
        every: seconds between two looks. patience: seconds that nothing may move; by default three of the ranks' intervals.
        limit: seconds to watch (``--for``); by default until a rank is behind or all are done.

    Raises:
        InputError: the folder holds no progress.
    """
    from meshwright.diagnose.watch import watch as watched

    wrong = [
        Mistake("watch()", name, value, "seconds, above 0")
        for name, value in (("every", every), ("patience", patience), ("limit", limit))
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e8)
    ]
    if wrong:
        raise InputError(wrong)
    return watched(Path(folder), every, patience or 0.0, limit)


def catalog(kind: Kind) -> list[dict[str, Any]]:
    """The built-in models, clusters or devices with their figures, in order of name. Raises InputError: there is no such kind."""
    from meshwright.spec.catalog_entries import catalog_entries

    return catalog_entries(kind)
