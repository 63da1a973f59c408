"""What ``meshwright collectives`` answers: every algorithm of a collective, its steps, bytes and time, and which one wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.collectives.algorithms import OPS, Algorithm, StepList, algorithms
from meshwright.collectives.execute import execute, padded_bytes
from meshwright.collectives.price import collective_s, price_lines
from meshwright.collectives.step_price import Crossover, NamedLine, best_line, crossovers, in_switch, lines, packed_group
from meshwright.collectives.verify import verify
from meshwright.errors import InputError, Mistake
from meshwright.spec.cluster import Cluster

MAX_RANKS = 256
"""Step lists grow with the square of the group: of a larger one they would take seconds to write out, and nobody could read them."""

MAX_PRICED_RANKS = 1 << 17
"""Larger groups are told by formulas, up to this size: more GPUs than any job has."""

PRICED = {"all_reduce": ("ring", "double_tree"), "all_gather": ("ring",), "reduce_scatter": ("ring",), "all_to_all": ("direct",)}
"""The algorithms whose lines ``price.price_lines`` gives, in its order."""

SIZES = tuple(float(1 << k) for k in range(10, 35, 2))
"""Payloads of the plot, 1 KiB to 16 GiB; crossovers are looked for between the first and the last."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmRow:
    """One algorithm at the payload asked for.

    Attributes:
        bytes_per_rank: what the busiest rank sends by the formula; bytes_counted: the same, counted from the messages that
            were sent if it was executed, else from its step list.
        time_s, latency_s: of one call, and the part of it that does not depend on the payload; None without a cluster.
        correct: the step list ends with the right sums or pieces, and so did the ranks if it was executed; None for what has
            no list.
    """

    name: str
    steps: int
    bytes_per_rank: float
    time_s: float | None
    latency_s: float | None
    executed: bool
    correct: bool | None
    bytes_counted: float | None

    @property
    def sound(self) -> bool:
        """Whether it is right and sends what its formula says, up to the formula's rounding."""
        near = self.bytes_counted is None or abs(self.bytes_counted - self.bytes_per_rank) <= 1e-9 * max(self.bytes_per_rank, 1.0)
        return self.correct is not False and near


@dataclass(frozen=True, kw_only=True)
class CollectiveReport:
    """All algorithms of one collective on one group.

    Attributes:
        best: the fastest at ``size_bytes``, "" without a cluster; priced_s: what the planner pays for this call.
        plot: for each of SIZES the fastest algorithm and its seconds.
    """

    op: str
    ranks: int
    size_bytes: float
    cluster: str
    algorithms: tuple[AlgorithmRow, ...]
    best: str
    priced_s: float | None
    crossovers: tuple[Crossover, ...]
    plot: tuple[tuple[float, str, float], ...]

    def as_json(self) -> dict[str, object]:
        """The keys of the command's answer."""
        rows = [
            {key: getattr(row, key) for key in ("name", "steps", "bytes_per_rank", "time_s", "executed", "correct", "bytes_counted")}
            for row in self.algorithms
        ]
        changes = [{"from": change.from_, "to": change.to, "size_bytes": change.payload_bytes} for change in self.crossovers]
        answer: dict[str, object] = {"op": self.op, "ranks": self.ranks, "size_bytes": self.size_bytes}
        return {**answer, "algorithms": rows, "best": self.best or None, "priced_s": self.priced_s, "crossovers": changes}


def report(op: str, size_bytes: float, ranks: int, cluster: Cluster | None = None, run: bool = False) -> CollectiveReport:
    """Write out, check, price and, if asked, execute every algorithm of ``op``.

    Without a cluster there are no times; two-level algorithms then split the ranks into two nodes. More than MAX_RANKS are not
    written out: their steps and bytes are the formulas', and times those of the algorithms that the price has.

    Raises:
        InputError: no such collective, or too many ranks.
    """
    check(op, ranks, MAX_RANKS if run else MAX_PRICED_RANKS)
    if ranks > MAX_RANKS:
        return _by_formulas(op, size_bytes, ranks, cluster)
    known = algorithms(op, ranks, _per_node(ranks, cluster))
    lists = [algorithm.build(ranks) for algorithm in known]
    found = {a.name: lines(a, ranks, cluster) for a in known} if cluster else {}
    rows = [_row(a, s, size_bytes, found.get(a.name, ())) for a, s in zip(known, lists, strict=True)]
    if run:
        rows = _executed(rows, known, lists, size_bytes)
    switch = in_switch(ranks, cluster) if cluster and op == "all_reduce" else None
    if switch:
        rows.append(_in_switch_row(switch, size_bytes))
    every = [line for group in found.values() for line in group] + ([switch] if switch else [])
    return _raced(op, size_bytes, ranks, cluster, rows, every if ranks > 1 else [])


def _by_formulas(op: str, size_bytes: float, ranks: int, cluster: Cluster | None) -> CollectiveReport:
    priced = price_lines(op, packed_group(ranks, cluster), cluster.tiers) if cluster else ()
    known = algorithms(op, ranks, _per_node(ranks, cluster))
    steps = {algorithm.name: int(algorithm.steps(ranks)) for algorithm in known}
    found = {name: NamedLine(name, steps[name], line) for name, line in zip(PRICED[op], priced, strict=False)}
    rows = [
        AlgorithmRow(
            name=algorithm.name, steps=steps[algorithm.name], bytes_per_rank=float(algorithm.wire_bytes(size_bytes, ranks)),
            time_s=float(line.time_s(size_bytes)) if (line := found.get(algorithm.name)) else None,
            latency_s=line.latency_s if line else None, executed=False, correct=None, bytes_counted=None,
        )
        for algorithm in known
    ]  # fmt: skip
    return _raced(op, size_bytes, ranks, cluster, rows, list(found.values()))


def _raced(
    op: str, size_bytes: float, ranks: int, cluster: Cluster | None, rows: Sequence[AlgorithmRow], racing: Sequence[NamedLine]
) -> CollectiveReport:
    """The report of rows, with what is fastest from which size on."""
    fastest = [best_line(racing, size) for size in SIZES] if racing else []
    return CollectiveReport(
        op=op,
        ranks=ranks,
        size_bytes=size_bytes,
        cluster=cluster.name if cluster else "",
        algorithms=tuple(rows),
        best=best_line(racing, size_bytes).name if racing else "",
        priced_s=float(collective_s(op, size_bytes, packed_group(ranks, cluster), cluster.tiers)) if cluster else None,
        crossovers=crossovers(racing, SIZES[0], SIZES[-1]) if racing else (),
        plot=tuple((size, line.name, float(line.time_s(size))) for size, line in zip(SIZES, fastest, strict=False)),
    )


def build(op: str, name: str, ranks: int, cluster: Cluster | None) -> tuple[StepList | None, tuple[str, ...]]:
    """The steps of one algorithm (None if there is none of that name here), and the names of all.

    Raises InputError as ``report``.
    """
    check(op, ranks, MAX_RANKS)
    known = algorithms(op, ranks, _per_node(ranks, cluster))
    found = next((algorithm.build(ranks) for algorithm in known if algorithm.name == name), None)
    return found, tuple(algorithm.name for algorithm in known)


def check(op: str, ranks: int, most: int) -> None:
    """Raises InputError: no such collective, or more ranks than ``most``."""
    mistakes = []
    if op not in OPS:
        mistakes.append(Mistake("command line", "OP", op, ", ".join(OPS), problem="is not a collective with algorithms"))
    if not 1 <= ranks <= most:
        priced = most == MAX_PRICED_RANKS
        hint = "" if priced else f"without --show and --run up to {MAX_PRICED_RANKS:,} are priced"
        problem = "is more than any job has" if priced else "is too many to write out step by step"
        mistakes.append(Mistake("command line", "--ranks", ranks, f"1 to {most:,}", hint, problem))
    if mistakes:
        raise InputError(mistakes)


def _per_node(ranks: int, cluster: Cluster | None) -> int | None:
    if cluster:
        return int(packed_group(ranks, cluster).members[0])
    return ranks // 2 if ranks % 2 == 0 else None


def _row(algorithm: Algorithm, steps: StepList, size_bytes: float, found: Sequence[NamedLine]) -> AlgorithmRow:
    fastest = best_line(found, size_bytes) if found else None
    return AlgorithmRow(
        name=algorithm.name,
        steps=fastest.steps if fastest else steps.num_steps,
        bytes_per_rank=float(algorithm.wire_bytes(size_bytes, steps.ranks)),
        time_s=float(fastest.time_s(size_bytes)) if fastest else None,
        latency_s=fastest.latency_s if fastest else None,
        executed=False,
        correct=not verify(steps),
        bytes_counted=float(steps.sent_bytes(size_bytes).max()),
    )


def _executed(rows: Sequence[AlgorithmRow], known: Sequence[Algorithm], lists: Sequence[StepList], size_bytes: float) -> list[AlgorithmRow]:
    """The rows with what the ranks found. Bytes, by formula and counted, are then of the padded payload that was run."""
    return [
        replace(
            row,
            executed=True,
            correct=row.correct and found.equal,
            bytes_per_rank=float(algorithm.wire_bytes(padded_bytes(steps, size_bytes), steps.ranks)),
            bytes_counted=float(max(found.sent_bytes)),
        )
        for row, algorithm, steps, found in zip(rows, known, lists, execute(lists, size_bytes), strict=True)
    ]


def _in_switch_row(line: NamedLine, size_bytes: float) -> AlgorithmRow:
    return AlgorithmRow(
        name=line.name,
        steps=line.steps,
        bytes_per_rank=size_bytes,
        time_s=float(line.time_s(size_bytes)),
        latency_s=line.latency_s,
        executed=False,
        correct=None,
        bytes_counted=None,
    )
