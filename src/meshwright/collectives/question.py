"""What is asked of ``collectives``, by command line or from Python: defaults filled in, options that do not go together refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from meshwright.collectives.algorithms import OPS, StepList
from meshwright.collectives.experts.loads import read_loads
from meshwright.collectives.experts.report import ExpertReport, expert_report
from meshwright.collectives.report import CollectiveReport, build, report
from meshwright.errors import InputError, Mistake, did_you_mean
from meshwright.spec.cluster import Cluster
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.load_model import resolve_model
from meshwright.spec.model import Model

__all__ = ["CollectiveAnswer", "CollectiveQuestion", "ShownSteps", "ask"]

DEFAULT_BYTES = 128 << 20
DEFAULT_RUN_BYTES = 1 << 20
DEFAULT_RANKS = 8
DEFAULT_TOKENS = 4096

MAX_BYTES = 1 << 50
"""1 PiB, as on the command line."""

MAX_COUNT = 10**8

COMMAND_LINE = "command line"
"""Stands in mistakes where the name of a file stands elsewhere."""


@dataclass(frozen=True, kw_only=True)
class CollectiveQuestion:
    """The options of ``meshwright collectives``; None or False for what was not said. source: stands in mistakes for a file."""

    op: str | None = None
    size: int | None = None
    ranks: int | None = None
    cluster: str | Path | Cluster | None = None
    run: bool = False
    show: bool = False
    algorithm: str | None = None
    experts: str | Path | Model | None = None
    tokens: int | None = None
    load: Path | None = None
    source: str = COMMAND_LINE


@dataclass(frozen=True, kw_only=True)
class ShownSteps:
    """One algorithm, step by step."""

    algorithm: str
    steps: StepList

    def as_json(self) -> dict[str, Any]:
        """The keys of the command's answer."""
        keys = ("step", "sender", "receiver", "chunk", "reduce")
        transfers = [dict(zip(keys, row, strict=True)) for row in self.steps.rows()]
        told = {"op": self.steps.op, "algorithm": self.algorithm, "ranks": self.steps.ranks, "chunks": self.steps.chunks}
        return {**told, "steps": self.steps.num_steps, "transfers": transfers}


CollectiveAnswer: TypeAlias = tuple[CollectiveReport, ...] | ExpertReport | ShownSteps
"""Reports of one collective or of all of them; of the ways to dispatch to experts; or steps."""


def ask(question: CollectiveQuestion) -> CollectiveAnswer:
    """Price, show or run.

    Raises:
        InputError: everything that is wrong with the options, or with what they name.
    """
    try:
        return _answer(question)
    except InputError as error:
        if question.source == COMMAND_LINE:
            raise
        raise InputError(_in_python(mistake, question.source) for mistake in error.mistakes) from None


def _in_python(mistake: Mistake, source: str) -> Mistake:
    """``--ranks`` of the command line is the keyword ``ranks`` of a call."""
    if mistake.file not in (COMMAND_LINE, "catalog"):
        return mistake
    return replace(mistake, file=source, key=mistake.key.removeprefix("--").lower())


def _answer(question: CollectiveQuestion) -> CollectiveAnswer:
    _check(question)
    where = question.cluster if isinstance(question.cluster, Cluster | None) else resolve_cluster(str(question.cluster))
    ranks = question.ranks or (where.gpus_per_node if where else DEFAULT_RANKS)
    if question.experts is not None:
        return _experts(question, ranks, where)
    if question.show:
        op = question.op or "all_reduce"
        name = question.algorithm or ("pairwise" if op == "all_to_all" else "ring")
        steps, names = build(op, name, ranks, where)
        if steps is None:
            raise InputError([_mistake("--algorithm", name, ", ".join(names), did_you_mean(name, names))])
        return ShownSteps(algorithm=name, steps=steps)
    payload = question.size or (DEFAULT_RUN_BYTES if question.run else DEFAULT_BYTES)
    return tuple(report(op, payload, ranks, where, question.run) for op in (OPS if question.op is None else (question.op,)))


def _experts(question: CollectiveQuestion, ranks: int, where: Cluster | None) -> ExpertReport:
    if question.op not in (None, "all_to_all"):
        raise InputError([_mistake("OP", question.op, "all_to_all with --experts")])
    if where is None:
        legal, hint = "a name of the catalog, or a TOML file", "`meshwright catalog clusters` lists the names"
        raise InputError([_mistake("--cluster", None, legal, hint, "is missing")])
    assert question.experts is not None
    loads = read_loads(question.load) if question.load else None
    model = question.experts if isinstance(question.experts, Model) else resolve_model(str(question.experts))
    return expert_report(model, where, ranks, question.tokens or DEFAULT_TOKENS, loads, str(question.load))


def _check(question: CollectiveQuestion) -> None:
    """What the parser of a command line has refused already, for calls; and options without the one that they belong to."""
    found = []
    for name, owner in (("algorithm", "show"), ("tokens", "experts"), ("load", "experts")):
        if getattr(question, name) is not None and not getattr(question, owner):
            found.append(_mistake(f"--{name}", None, f"with --{owner}", problem=f"is only used with --{owner}"))
    if question.op is not None and question.op not in OPS:
        found.append(_mistake("OP", question.op, ", ".join(OPS), did_you_mean(str(question.op), OPS)))
    for name, most in (("size", MAX_BYTES), ("ranks", MAX_COUNT), ("tokens", MAX_COUNT)):
        value = getattr(question, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most):
            found.append(_mistake(f"--{name}", value, f"a whole number from 1 to {most:,}"))
    if found:
        raise InputError(found)


def _mistake(key: str, value: object, legal: str, hint: str = "", problem: str = "") -> Mistake:
    return Mistake(COMMAND_LINE, key, value, legal, hint, problem)
