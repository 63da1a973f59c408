"""How ranks fail, and which of them failed first. No torch."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meshwright.errors import NoAnswer

FailureKind = Literal["exception", "signal", "exit", "peer", "hang"]


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """One rank that did not return.

    Attributes:
        kind: "exception" (its own), "signal" (killed or aborted), "exit" (left without a result), "peer" (it failed
            because another one did: connection closed, timeout in a collective), "hang" (alive at the time limit, or
            still waiting for a rank that had failed).
        when_s: seconds since the job began.
        message: the exception's type and text, the signal's name.
        stack: traceback or stack of all threads at the end; "" where the process left none.
        output: the last lines that it printed.
    """

    rank: int
    kind: FailureKind
    when_s: float
    message: str
    stack: str = ""
    output: str = ""

    @property
    def waits_in_collective(self) -> bool:
        """Whether its main thread's innermost frames are torch's collectives: it waits for somebody else."""
        return any(re.search(r"torch[/\\]distributed[/\\]", frame) for frame in _frames(self.stack)[:4])

    @property
    def where(self) -> str:
        """``model.py:12 in forward``: its innermost frame outside torch, "" if unknown."""
        for frame in _frames(self.stack):
            match = re.match(r'File "(.+)", line (\d+),? in (.+)', frame)
            if match and "site-packages" not in match[1] and not match[1].startswith("<"):
                return f"{match[1]}:{match[2]} in {match[3]}"
        return ""


class RanksFailed(NoAnswer):
    """A job did not end on all ranks.

    Attributes:
        failures: of the ranks that failed, the first cause first.
        finished: ranks that had returned.
    """

    def __init__(self, failures: Sequence[RankFailure], finished: Sequence[int], world_size: int, timeout_s: float) -> None:
        self.failures = tuple(sorted(failures, key=_order))
        self.finished = tuple(sorted(finished))
        self.world_size = world_size
        self.timeout_s = timeout_s
        super().__init__(self._text())

    @property
    def first(self) -> RankFailure:
        return self.failures[0]

    def _text(self) -> str:
        first = self.first
        lines = [f"rank {first.rank} of {self.world_size} failed first, {first.when_s:.2f} s after the start: {first.message}"]
        if first.kind == "hang":
            lines = [f"no end after {self.timeout_s:g} s: rank {first.rank} of {self.world_size} {self._state(first)}"]
        lines += [f"  rank {failure.rank}: {self._state(failure)}" for failure in self.failures[1:]]
        if self.finished:
            lines.append(f"  ranks that had finished: {', '.join(map(str, self.finished))}")
        if first.stack:
            lines += [f"  stack of rank {first.rank}:", *(f"    {line}" for line in first.stack.rstrip().splitlines())]
        if first.output:
            lines += [f"  last output of rank {first.rank}:", *(f"    {line}" for line in first.output.rstrip().splitlines())]
        return "\n".join(lines)

    @staticmethod
    def _state(failure: RankFailure) -> str:
        where = f" at {failure.where}" if failure.where else ""
        if failure.kind != "hang":
            return f"{failure.message}{where}"
        return f"waits in a collective{where}" if failure.waits_in_collective else f"is busy outside of any collective{where}"


_KIND_ORDER: dict[FailureKind, int] = {"signal": 0, "exception": 0, "exit": 0, "hang": 1, "peer": 2}


def _order(failure: RankFailure) -> tuple[int, bool, float, int]:
    # A rank that waits for others is a victim; a hanging rank that does not wait is the likely cause of the wait.
    return (_KIND_ORDER[failure.kind], failure.kind == "hang" and failure.waits_in_collective, failure.when_s, failure.rank)


_PEER_ERRORS = re.compile(
    r"Connection (?:closed|reset) by peer|Broken pipe|Timed out waiting|timed out after|Application timeout caused pair closure"
    r"|connectFullMesh failed|wait timeout|Socket (?:closed|timeout)|Network is unreachable|Connection refused",
    re.IGNORECASE,
)
"""What gloo, its store and its rendezvous say on the survivors when a peer is gone (seen on torch 2.13)."""


def is_peer_error(message: str) -> bool:
    """Whether an exception's text says that another rank is at fault."""
    return _PEER_ERRORS.search(message) is not None


def signal_message(number: int) -> str:
    """``killed by SIGKILL``, with the usual reason."""
    reasons = {
        signal.SIGKILL: "killed by SIGKILL (from outside, or out of memory)",
        signal.SIGABRT: "aborted (SIGABRT): a C++ exception, e.g. a collective whose sizes differ between ranks",
        signal.SIGSEGV: "crashed (SIGSEGV)",
        signal.SIGFPE: "crashed (SIGFPE)",
    }
    try:
        name = signal.Signals(number)
    except ValueError:
        return f"killed by signal {number}"
    return reasons.get(name, f"killed by {name.name}")


def _frames(stack: str) -> list[str]:
    """The main thread's frames, innermost first, of a traceback or of a faulthandler dump."""
    lines = [line.strip() for line in stack.splitlines()]
    if any(line.startswith("Traceback (most recent call last)") for line in lines):
        return [line for line in lines if line.startswith("File ")][::-1]
    # A dump lists other threads first; the thread that took the signal, which is the main one, is the "Current thread".
    starts = [number for number, line in enumerate(lines) if line.startswith("Current thread")]
    begin = starts[-1] if starts else 0
    frames = []
    for line in lines[begin:]:
        if line.startswith("File "):
            frames.append(line)
        elif frames:
            break
    return frames
