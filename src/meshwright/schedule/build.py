"""From a schedule's word to the lists of all ranks: the one table of the schedules there are, and what each of them needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from meshwright.errors import InputError, Mistake
from meshwright.schedule import dualpipe, gpipe, interleaved, naive, one_f_one_b, zb_v, zero_bubble, zero_bubble_automatic
from meshwright.schedule.actions import Action, Schedule
from meshwright.schedule.zero_bubble_automatic import PassTimes
from meshwright.spec.layout import SCHEDULES, TWO_CHUNK_SCHEDULES

__all__ = ["build", "placement", "schedule_mistakes"]

RankActions = Callable[[int], list[Action]]


def build(schedule: str, p: int, v: int, m: int, times: PassTimes | None = None) -> Schedule:
    """The lists of one step of a pipeline.

    Args:
        schedule: a schedule's word in a layout (spec.layout.SCHEDULES).
        p: pipeline ranks.
        v: chunks per rank: any for interleaved, 2 for zb-v and dualpipe-v, else 1.
        m: micro-batches per step.
        times: for zb-1p and zb-2p, which are made for given durations; the others ignore it. Default: all equal, no transfers.

    Raises:
        InputError: m or p that the schedule cannot take.
    """
    mistakes = schedule_mistakes(schedule, p, v, m)
    if mistakes:
        raise InputError(mistakes)
    copies = 2 if schedule == "dualpipe" else 1
    if schedule in ("zb-1p", "zb-2p"):
        actions = zero_bubble_automatic.all_actions(p, m, 1 if schedule == "zb-1p" else 2, times or PassTimes())
    else:
        rank_actions = _rank_actions(schedule, p, v, m)
        actions = [rank_actions(rank) for rank in range(p)]
    return Schedule(schedule, p, m, placement(schedule, p, v), tuple(map(tuple, actions)), copies)


def placement(schedule: str, p: int, v: int) -> tuple[int, ...]:
    """The pipeline rank of each chunk, in model order; for dualpipe of both copies, the second from the far end."""
    if schedule in TWO_CHUNK_SCHEDULES or schedule == "dualpipe":
        return (*range(p), *range(p - 1, -1, -1))
    return tuple(chunk % p for chunk in range(p * v))


def _rank_actions(schedule: str, p: int, v: int, m: int) -> RankActions:
    makers: dict[str, RankActions] = {
        "naive": partial(naive.rank_actions, m=m),
        "gpipe": partial(gpipe.rank_actions, m=m),
        "1f1b": partial(one_f_one_b.rank_actions, p=p, m=m),
        "interleaved": partial(interleaved.rank_actions, p=p, v=v, m=m),
        "zb-h1": partial(zero_bubble.h1_rank_actions, p=p, m=m),
        "zb-h2": partial(zero_bubble.h2_rank_actions, p=p, m=m),
        "zb-v": partial(zb_v.rank_actions, p=p, m=m),
        "dualpipe": partial(dualpipe.dualpipe_rank_actions, p=p, m=m),
        "dualpipe-v": partial(dualpipe.dualpipe_v_rank_actions, p=p, m=m),
    }
    return makers[schedule]


def schedule_mistakes(schedule: str, p: int, v: int, m: int, file: str = "layout") -> list[Mistake]:
    """What keeps this schedule from running with p ranks, v chunks each and m micro-batches; empty if nothing does."""
    if schedule not in SCHEDULES:
        return [Mistake(file, "pp", schedule, " ".join(SCHEDULES), problem="is not a schedule")]
    found = [
        Mistake(file, key, value, "1 or more") for key, value in (("pp", p), ("virtual stages", v), ("micro-batches", m)) if value < 1
    ]  # fmt: skip
    if found:
        return found
    chunks = 2 if schedule in TWO_CHUNK_SCHEDULES else v if schedule == "interleaved" else 1
    if v != chunks:
        found.append(Mistake(file, "virtual stages", v, str(chunks), problem=f"does not fit {schedule}"))
    if schedule == "interleaved" and m % p:
        found.append(Mistake(
            file, "micro-batches", m, f"a multiple of pp = {p}", f"take {m + p - m % p} micro-batches, or 1f1b",
            f"is not divisible by pp = {p}, which interleaved needs",
        ))  # fmt: skip
    if schedule == "dualpipe" and p % 2:
        found.append(Mistake(file, "pp", p, "an even number", "dualpipe-v takes any", "is odd, and dualpipe feeds from both ends"))
    if schedule == "dualpipe" and m % 2:
        found.append(Mistake(file, "micro-batches", m, "an even number", problem="is odd, and dualpipe feeds from both ends"))
    if schedule in ("dualpipe", "dualpipe-v") and m < 2 * p:
        found.append(Mistake(
            file, "micro-batches", m, f"{2 * p} or more (2 pp)", "fewer micro-batches: zb-v or 1f1b", f"is too few for {schedule}",
        ))  # fmt: skip
    return found
