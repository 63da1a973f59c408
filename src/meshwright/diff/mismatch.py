"""One difference between what a rank did and what it was expected to do, and how it is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from meshwright.ledger.expected import Expected
from meshwright.recording.events import Event

Kind = Literal["missing", "extra", "op", "reduce_op", "group", "peer", "dtype", "bytes", "splits", "place", "order", "unfinished"]
"""What is wrong. place: a call of the right kind, but from another module, phase or micro-batch. order: the call is there, earlier or later
in its group. unfinished: a rank ended in the middle of its list."""


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Attributes:
    rank, axis: where. position: among the rank's expected events of all groups, for the order of telling.
    module, phase, step, micro_batch: of the expected event, or of the recorded one where none was expected.
    expected, recorded: what was to be done and what was; None where there is no such event.
    why: the ledger's reason for the expected event.
    """

    kind: Kind
    rank: int
    axis: str
    position: int
    module: str
    phase: str
    step: int | None
    micro_batch: int | None
    expected: Expected | None
    recorded: Event | None
    why: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind} on rank {self.rank}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        """Plain values, for a certificate."""
        values = {key: getattr(self, key) for key in ("kind", "rank", "axis", "module", "phase", "step", "micro_batch", "why", "message")}
        values["expected"] = None if self.expected is None else asdict(self.expected)
        values["recorded"] = None if self.recorded is None else _recorded_json(self.recorded)
        return values


def _recorded_json(event: Event) -> dict[str, Any]:
    keys = ("index", "module", "call_site", "op", "reduce_op", "group", "peer", "dtype", "shape", "payload_bytes")
    return {key: getattr(event, key) for key in keys}


def make(kind: Kind, rank: int, position: int, expected: Expected | None, recorded: Event | None, axis: str) -> Mismatch:
    """A mismatch, with its message."""
    place: Any = expected if expected is not None else recorded
    where = f"{axis}, {_when(place)}, {place.module or 'outside of any module'}"
    return Mismatch(
        kind=kind, rank=rank, axis=axis, position=position, module=place.module, phase=place.phase, step=place.step,
        micro_batch=place.micro_batch, expected=expected, recorded=recorded, why=expected.why if expected else "",
        message=f"{where}: {_TEXTS[kind](expected, recorded)}" + (f" ({expected.why})" if expected and expected.why else ""),
    )  # fmt: skip


def _when(place: Any) -> str:
    step = "" if place.step is None else f"step {place.step}, "
    micro_batch = "" if place.micro_batch is None else f"micro-batch {place.micro_batch}, "
    chunk = "" if place.chunk is None else f"chunk {place.chunk}, "
    return f"{step}{micro_batch}{chunk}{place.phase or 'no phase'}"


def _call(op: str, reduce_op: str, num_bytes: int, dtype: str) -> str:
    return f"{op}{f'({reduce_op})' if reduce_op else ''} of {num_bytes:,} bytes {dtype}"


def _was(event: Any) -> str:
    return _call(event.op, event.reduce_op, event.payload_bytes, event.dtype)


def _site(event: Event) -> str:
    return f" at {event.call_site}" if event.call_site else ""


_TEXTS: dict[str, Any] = {
    "missing": lambda e, r: f"{_was(e)} is missing",
    "extra": lambda e, r: f"{_was(r)}{_site(r)} was not expected",
    "op": lambda e, r: f"expected {_was(e)}, did {_was(r)}{_site(r)}",
    "reduce_op": lambda e, r: f"{e.op} reduced by {r.reduce_op or 'nothing'} instead of {e.reduce_op or 'nothing'}{_site(r)}",
    "group": lambda e, r: f"{_was(e)} belongs in the group {list(e.ranks)} and went into {r.group}{_site(r)}",
    "peer": lambda e, r: f"{e.op} with rank {r.peer} instead of rank {e.peer}{_site(r)}",
    "dtype": lambda e, r: f"{e.op} in {r.dtype} instead of {e.dtype}{_site(r)}",
    "bytes": lambda e, r: f"{e.op} of {r.payload_bytes:,} bytes (shape {list(r.shape)}) instead of {e.payload_bytes:,}{_site(r)}",
    "splits": lambda e, r: (
        f"{e.op} with rows {list(r.input_splits)} -> {list(r.output_splits)} instead of {list(e.input_splits)} -> {list(e.output_splits)}"
    ),
    "place": lambda e, r: f"the call here came from {r.module or 'no module'}, {_when(r)}{_site(r)}",
    "order": lambda e, r: f"{_was(e)} is there, but not where it belongs in the group{_site(r)}",
    "unfinished": lambda e, r: f"ended before {_was(e)} and all that follows",
}


def in_order(mismatches: Iterable[Mismatch]) -> list[Mismatch]:
    """First divergence first: by place in the program, then by rank."""
    return sorted(mismatches, key=lambda m: (m.position, m.rank))


def by_rank(mismatches: Iterable[Mismatch]) -> list[str]:
    """A line for each mismatch, one for all ranks that have the same; in the order of their first."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for mismatch in mismatches:
        ranks.setdefault((mismatch.kind, mismatch.message), []).append(mismatch.rank)
    return [f"{kind} on {_ranks(found)}: {message}" for (kind, message), found in ranks.items()]


def _ranks(ranks: list[int]) -> str:
    """``rank 3``, ``ranks 0, 1`` or ``ranks 0-7``."""
    first, last = min(ranks), max(ranks)
    if len(ranks) == 1:
        return f"rank {first}"
    if sorted(ranks) == list(range(first, last + 1)) and len(ranks) > 2:
        return f"ranks {first}-{last}"
    return f"ranks {', '.join(map(str, sorted(ranks)))}"
