"""Read the text that NVIDIA's nccl-tests (and AMD's rccl-tests) print, also where several runs follow one another.

What is read of a run: the parameter line that opens it, one line per rank with its host, the two header lines with names
and units, one line per size (out-of-place columns), and the name of the program, which some versions print and others do
not. Everything else (NCCL INFO lines, prompts) is skipped. In a row ``size`` is the full buffer, our payload.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from meshwright.calibrate.network import Point
from meshwright.errors import Mistakes

OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
}
"""Programs (``<name>_perf``) and our names."""

_LAUNCHER = re.compile(r"^(\[\d+,\d+\]<std(?:out|err)>:|\d+: )\s?")  # mpirun --tag-output, srun --label
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b.*\bon\s+(\S+)\s+device\b")
_PROGRAM = re.compile(r"\b(\w+?)_perf\b")
_UNITS = re.compile(r"^#\s+\(B\)\s+\(elements\)")
_ROW = re.compile(r"^\s*-?\d+\s+-?\d+\s+[a-z]\w*\s")
_WIDTHS = (11, 12, 13)  # size count type, [redop, [root]], then time algbw busbw #wrong twice

ROUNDING_GBPS = 0.011
"""algbw is printed with two digits after the point, truncated or rounded."""
ROUNDING_SHARE = 0.02
"""And computed from a time that is printed with four digits; a mix of ms and us is off by a thousand."""


@dataclass
class _Run:
    line: int
    program: str | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    units: tuple[str, ...] | None = None
    rows: list[tuple[int, float, float]] = field(default_factory=list)
    """(line, size in bytes, time in us)"""


def parse(text: str, file: str, op: str | None = None, ranks: int | None = None) -> list[Point]:
    """The points of all runs in ``text``.

    Args:
        file: what mistakes call the text.
        op, ranks: for output that does not say them (all but the newest versions leave out the program).

    Raises:
        InputError: with the line and reason of everything that is malformed: a row that is cut off, a time or size that is
            not positive, a time that its own bandwidth contradicts or another unit than before, wrong results, no rows.
    """
    with Mistakes.of(file) as mistakes:
        runs = list(_runs(text, mistakes))
        if not any(run.rows for run in runs) and not mistakes.found:
            mistakes.add(
                "",
                None,
                "the output of an nccl-tests program",
                "run for example all_reduce_perf -b 1K -e 512M -f 4",
                "has no measured rows",
            )
        points = [point for run in runs if run.rows for point in _points(run, file, op, ranks, mistakes)]
    return points


def _runs(text: str, mistakes: Mistakes) -> Iterator[_Run]:
    run = _Run(line=1)
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _LAUNCHER.sub("", raw).strip("\r\n")
        if line.lstrip().startswith("# nThread"):
            if run.rows or run.hosts:
                yield run
                run = _Run(line=number)
            continue
        program = _PROGRAM.search(line)
        if program and not _ROW.match(line):
            if run.program and run.rows and run.program != program[1]:
                yield run
                run = _Run(line=number)
            run.program = program[1]
        _read_line(run, line, number, mistakes)
    yield run


def _read_line(run: _Run, line: str, number: int, mistakes: Mistakes) -> None:
    rank = _RANK.match(line)
    if rank:
        run.hosts[int(rank[1])] = rank[2]
    elif _UNITS.match(line):
        _read_units(run, line, number, mistakes)
    elif line.startswith("#") and "Out of bounds values" in line and "FAILED" in line:
        mistakes.add(f"line {number}", line.split(":")[-1].strip(), "0 OK", problem="says that results were wrong")
    elif _ROW.match(line) and "NCCL" not in line:
        row = _read_row(line.split(), number, mistakes)
        if row:
            run.rows.append(row)


def _read_units(run: _Run, line: str, number: int, mistakes: Mistakes) -> None:
    units = tuple(re.findall(r"\(([^)]+)\)", line)[2:])
    if run.units is not None and units != run.units:
        mistakes.add(f"line {number}: units", " ".join(units), " ".join(run.units), "give one run at a time", "differ from those above")
    elif any(unit not in ("us", "GB/s") for unit in units):
        mistakes.add(f"line {number}: units", " ".join(units), "(us) for times and (GB/s) for bandwidths")
    run.units = units


def _read_row(words: list[str], number: int, mistakes: Mistakes) -> tuple[int, float, float] | None:
    before = len(mistakes.found)
    if len(words) not in _WIDTHS:
        mistakes.add(f"line {number}", " ".join(words), f"{', '.join(map(str, _WIDTHS))} columns", problem=f"has {len(words)} columns")
        return None
    size = float(words[0])
    numbers: dict[str, float] = {}
    for name, word in zip(("time", "algbw", "busbw"), words[-8:-5], strict=True):
        try:
            numbers[name] = float(word)
        except ValueError:
            mistakes.add(f"line {number}: {name}", word, "a number")
    if size == 0:
        return None  # nccl-tests prints a row for -b 0; it measures the call alone
    if size < 0:
        mistakes.add(f"line {number}: size", words[0], "a positive number of bytes")
    if "time" in numbers and not 0 < numbers["time"] < math.inf:
        mistakes.add(f"line {number}: time", words[-8], "a positive number of us")
    if words[-5] not in ("N/A",) and _is_wrong(words[-5]):
        mistakes.add(f"line {number}: #wrong", words[-5], "0 or N/A", problem="says that results were wrong")
    if len(mistakes.found) > before:
        return None
    return _consistent(number, size, numbers["time"], numbers["algbw"], mistakes)


def _is_wrong(word: str) -> bool:
    """Older versions print the largest error here (1e-06), newer ones a count."""
    try:
        value = float(word)
    except ValueError:
        return True
    return value > 1e-2 or value < 0 or math.isnan(value)


def _consistent(number: int, size: float, time_us: float, algbw: float, mistakes: Mistakes) -> tuple[int, float, float] | None:
    expected = size / time_us * 1e-3
    if abs(algbw - expected) > ROUNDING_GBPS + ROUNDING_SHARE * expected:
        hint = "were times in ms and us, or sizes in elements and bytes, mixed?"
        problem = f"does not fit algbw = {algbw:g} GB/s: {size:.0f} B in {time_us:g} us are {expected:.4g} GB/s"
        mistakes.add(f"line {number}: time", f"{time_us:g}", "us, as all times of nccl-tests", hint, problem)
        return None
    return number, size, time_us


def _points(run: _Run, file: str, op: str | None, ranks: int | None, mistakes: Mistakes) -> list[Point]:
    name = OPS.get(run.program) if run.program else op
    first = run.rows[0][0]
    if name is None:
        legal = ", ".join(f"{program}_perf" for program in OPS if program != "all_to_all")
        said = f"{run.program}_perf" if run.program else None
        problem = "has no curve" if run.program else "is not said in the output"
        mistakes.add(f"line {first}: program", said, legal, "" if run.program else "name the collective with --op", problem)
        return []
    count = len(run.hosts) or ranks
    if not count or count < 2:
        problem = "are not listed in the output" if not count else "sends nothing"
        mistakes.add(f"line {first}: ranks", count, "2 or more", "" if count else "say how many with --ranks", problem)
        return []
    nodes = len(set(run.hosts.values())) or 1
    return [Point(name, count, size, time_us * 1e-6, nodes, f"{file}:{line}") for line, size, time_us in run.rows]
