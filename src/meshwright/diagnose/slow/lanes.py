"""A step as a picture has it: of each rank, what it does and what it waits for, cut into pieces no finer than a picture shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from meshwright.diagnose.slow import intervals
from meshwright.diagnose.slow.phases import COMPUTE_PHASES, phases_of, steps_of
from meshwright.diagnose.slow.step_split import kernels_of

if TYPE_CHECKING:
    from meshwright.diagnose.slow.intervals import Intervals
    from meshwright.diagnose.slow.profile import Profile
    from meshwright.diagnose.slow.what_if import WhatIf
    from meshwright.recording.trace import Communication, Trace

__all__ = ["Lane", "Picture", "Piece", "played_step", "profiled_step"]

COLUMNS = 1200
"""Pieces of a lane at most; about the pixels that it gets."""

MAX_LANES = 32

SAME_MOMENT_S = 2e-6
"""Seconds since the epoch are floats with a quarter of a microsecond between them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """what: ``forward``, ``transfer``, ``waiting`` and so on. told: more about it, "" for nothing. Seconds after the picture's start."""

    start_s: float
    end_s: float
    what: str
    told: str = ""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One rank, or one worker: what its device computes or why it idles, and below it what it sends and waits for."""

    label: str
    ranks: tuple[int, ...]
    upper: tuple[Piece, ...]
    lower: tuple[Piece, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Picture:
    """title: what is shown. span_s: of all lanes. left_out: lanes beyond MAX_LANES, those that wait in the middle."""

    title: str
    span_s: float
    lanes: tuple[Lane, ...]
    left_out: int = 0


def profiled_step(profile: Profile) -> Picture:
    """One step of the traces (the last that is whole), on one clock."""
    offsets = clock_offsets(profile)
    windows = {trace.rank: _last_step(profile, trace.rank, offsets) for trace in profile.traces}
    start_s, end_s = min(first for first, _ in windows.values()), max(last for _, last in windows.values())
    chosen = _most_telling(profile)
    met = _met(profile, offsets)
    lanes = tuple(_lane(profile, rank, offsets[rank], (start_s, end_s), met[rank]) for rank in chosen)
    number = "the last step" if profile.steps > 1 else "the step"
    return Picture(
        title=f"{number} of {len(profile.ranks)} ranks", span_s=end_s - start_s, lanes=lanes, left_out=len(profile.ranks) - len(chosen)
    )


def clock_offsets(profile: Profile) -> dict[int, float]:
    """What to add to a rank's own seconds for those of a common clock: collectives end at the same moment on all of their ranks."""
    reference = profile.traces[0]
    offsets = {trace.rank: trace.origin_s - reference.origin_s for trace in profile.traces}
    apart: dict[int, list[float]] = defaultdict(list)
    for meeting in profile.collectives:
        ends = {rank: meeting.start_s[rank] + duration for rank, duration in meeting.duration_s.items()}
        middle = median(ends.values())
        for rank, end in ends.items():
            apart[rank].append(end - middle)
    for rank, found in apart.items():
        if abs(correction := median(found)) > 1e-3:  # clocks of one host, and of well-synchronised ones, are nearer than that
            offsets[rank] -= correction
    return offsets


def _last_step(profile: Profile, rank: int, offsets: Mapping[int, float]) -> tuple[float, float]:
    """On the common clock; the whole window where the trace names no step."""
    trace, split = profile.trace(rank), profile.split(rank)
    steps = steps_of(trace)
    end_s = split.start_s + split.window_s
    start_s = float(steps.start_s[-1]) if len(steps) > 1 else split.start_s
    return start_s + offsets[rank], end_s + offsets[rank]


def _most_telling(profile: Profile) -> list[int]:
    """All ranks, or those that wait most and least."""
    if len(profile.ranks) <= MAX_LANES:
        return list(profile.ranks)
    ordered = sorted(profile.ranks, key=lambda rank: profile.waiting_s[rank])
    return sorted(ordered[: MAX_LANES // 2] + ordered[-MAX_LANES // 2 :])


def _met(profile: Profile, offsets: Mapping[int, float]) -> dict[int, list[Piece]]:
    """Waiting and transfer of each rank, on the common clock."""
    found: dict[int, list[Piece]] = {rank: [] for rank in profile.ranks}
    origins = {trace.rank: trace.origin_s for trace in profile.traces}
    for meeting in profile.meetings:
        group = f"{meeting.ranks[0]} to {meeting.ranks[1]}" if meeting.op == "send" else meeting.group
        name = f"{meeting.op} {meeting.number}" + (f" of {group}" if group else "")
        for rank, duration in meeting.duration_s.items():
            start = meeting.start_s[rank] - origins[rank] + offsets[rank]
            arrival = start + duration - meeting.transfer_s
            found[rank].append(Piece(start, arrival, "waiting", f"waits for rank {meeting.late_rank} in {name}"))
            found[rank].append(Piece(arrival, start + duration, "transfer", name))
    return found


def _lane(profile: Profile, rank: int, offset_s: float, window: tuple[float, float], met: list[Piece]) -> Lane:
    trace, split = profile.trace(rank), profile.split(rank)
    kernels = kernels_of(trace)
    phases = phases_of(trace, kernels)
    sets = {
        name: intervals.of(kernels.start_s[phases == index], kernels.end_s[phases == index]) for index, name in enumerate(COMPUTE_PHASES)
    }
    sets |= {f"idle: {cause}": each for cause, each in split.idle.items()}
    others = _not_met(trace, [piece.start_s - offset_s for piece in met])
    lower = [piece for piece in met if piece.end_s > window[0] and piece.start_s < window[1]]
    lower += [Piece(each.start_s + offset_s, each.end_s + offset_s, "communication", each.kernel[:60]) for each in others]
    return Lane(
        label=f"rank {rank}", ranks=(rank,),
        upper=_pieces({name: each + offset_s for name, each in sets.items()}, *window),
        lower=_visible(lower, *window),
    )  # fmt: skip


def _not_met(trace: Trace, starts: list[float]) -> list[Communication]:
    """Communication that no other rank was seen in."""
    import numpy as np

    known = np.sort(np.array([-np.inf, *starts, np.inf]))
    mine = np.array([each.start_s for each in trace.communications])
    place = np.searchsorted(known, mine)
    near = np.minimum(np.abs(known[np.minimum(place, len(known) - 1)] - mine), np.abs(mine - known[np.maximum(place - 1, 0)]))
    return [each for each, gap in zip(trace.communications, near.tolist(), strict=True) if gap > SAME_MOMENT_S]


def _pieces(sets: Mapping[str, Intervals], start_s: float, end_s: float) -> tuple[Piece, ...]:
    """Of each of COLUMNS parts of the window what fills most of it, equal neighbours joined."""
    import numpy as np

    edges = np.linspace(start_s, end_s, COLUMNS + 1)
    names = list(sets)
    filled = np.stack([np.diff(intervals.covered(sets[name], edges)) for name in names])
    best = np.where(filled.max(axis=0) > 0, filled.argmax(axis=0), -1)
    turns = np.flatnonzero(np.diff(best)) + 1
    bounds = [0, *turns.tolist(), COLUMNS]
    return tuple(Piece(float(edges[a] - start_s), float(edges[b] - start_s), names[best[a]]) for a, b in pairwise(bounds) if best[a] >= 0)


def _visible(pieces: list[Piece], start_s: float, end_s: float) -> tuple[Piece, ...]:
    """Pieces cut to the window; of those too short to be seen, one for each column."""
    least = (end_s - start_s) / COLUMNS
    kept: list[Piece] = []
    last: dict[str, float] = {}
    for piece in sorted(pieces, key=lambda each: each.start_s):
        a, b = max(piece.start_s, start_s) - start_s, min(piece.end_s, end_s) - start_s
        if b <= a or (b - a < least and a < last.get(piece.what, -1.0)):
            continue
        b = max(b, a + least)
        last[piece.what] = b
        kept.append(Piece(a, b, piece.what, piece.told))
    return tuple(kept)


def played_step(found: WhatIf) -> Picture:
    """The last step of a table, as it is played again from its operations: the workers' computations, and waiting between them."""
    graph = found.graph
    ends = graph.ends(graph.duration_s)[:, -1]
    workers: dict[tuple[int, int], list[Piece]] = defaultdict(list)
    for node, end, duration in zip(graph.nodes, ends.tolist(), graph.duration_s[:, -1].tolist(), strict=True):
        if not node.kind.endswith("-send") and duration > 0:
            what = node.kind.removesuffix("-compute")
            what = what if what in ("forward", "backward") else "optimizer" if what.startswith("optimizer") else "transfer"
            workers[node.worker].append(Piece(end - duration, end, what, f"{node.kind} {node.sequence}"))
    lanes = []
    for (data_rank, stage), pieces in sorted(workers.items(), key=lambda item: (item[0][0], item[0][1])):
        pieces.sort(key=lambda piece: piece.start_s)
        rank = graph.rank.get((data_rank, stage))
        lanes.append(
            Lane(label=f"stage {stage}, data {data_rank}", ranks=() if rank is None else (rank,), upper=tuple(_with_waiting(pieces)))
        )
    told = f"step {graph.steps[-1]} of {len(lanes)} workers, played again from its operations"
    return Picture(title=told, span_s=float(ends.max()), lanes=tuple(lanes[:MAX_LANES]), left_out=max(len(lanes) - MAX_LANES, 0))


def _with_waiting(pieces: list[Piece]) -> list[Piece]:
    found: list[Piece] = []
    reached = 0.0
    for piece in pieces:
        if piece.start_s > reached + 1e-9:
            found.append(Piece(reached, piece.start_s, "waiting", f"before {piece.told}"))
        found.append(piece)
        reached = max(reached, piece.end_s)
    return found
