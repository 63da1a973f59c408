"""One slow stage, rank, link or kind of computation: the costs of a pipeline with something wrong in it.

stage=3 x1.3              everything that stage 3 of the model computes
rank=2 x2                 everything that pipeline rank 2 computes
link=1-2 x4               messages between pipeline ranks 1 and 2, both ways
op=backward x1.5          forward, backward, backward_input or backward_weight, everywhere
rank=2 op=forward x1.5    only that rank's forwards
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshwright.errors import InputError, Mistake

if TYPE_CHECKING:
    from meshwright.schedule.actions import Schedule
    from meshwright.timeline.costs import Costs

__all__ = ["Slow", "parse_slow", "slow_down"]

OPS = ("forward", "backward", "backward_input", "backward_weight")
LEGAL = "stage=S, rank=R, link=A-B or op=forward|backward|backward_input|backward_weight, and a factor such as x1.3"
_WORD = re.compile(r"(stage|rank)=([0-9]{1,6})|link=([0-9]{1,6})-([0-9]{1,6})|op=([a-z_]+)|x([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True)
class Slow:
    """What is slow and how much longer it takes; None is "all of them".

    Attributes:
        factor: of the durations.
        stage: piece of the model (chunk).
        rank: pipeline rank.
        link: two pipeline ranks; then messages are slow and nothing else.
        op: kind of computation; "backward" is both halves.
    """

    factor: float
    stage: int | None = None
    rank: int | None = None
    link: tuple[int, int] | None = None
    op: str | None = None


def parse_slow(text: str, file: str = "--slow") -> Slow:
    """Read ``stage=3 x1.3``.

    Raises:
        InputError: anything else.
    """
    found: dict[str, object] = {}
    for word in text.split():
        match = _WORD.fullmatch(word)
        if match is None or (match[5] and match[5] not in OPS):
            raise InputError([Mistake(file, word, text, LEGAL, problem="is not understood")])
        if match[1]:
            found[match[1]] = int(match[2])
        elif match[3]:
            found["link"] = (int(match[3]), int(match[4]))
        elif match[5]:
            found["op"] = match[5]
        else:
            found["factor"] = float(match[6])
    if "factor" not in found or len(found) < 2 or ("link" in found and len(found) > 2):
        raise InputError([Mistake(file, "", text, LEGAL, "say what is slow, and how much: stage=3 x1.3", "is incomplete")])
    return Slow(**found)  # type: ignore[arg-type]


def slow_down(schedule: Schedule, costs: Costs, slow: Slow, file: str = "--slow") -> Costs:
    """The costs with this slowness.

    Raises:
        InputError: a stage, rank or link that the pipeline does not have.
    """
    _check(schedule, slow, file)
    ranks = np.asarray(schedule.rank_of_chunk)
    if slow.link is not None:
        return _slow_link(schedule, costs, slow.factor, slow.link)
    hit = np.ones(schedule.num_chunks, dtype=np.bool_)
    if slow.stage is not None:
        hit &= np.arange(schedule.num_chunks) % schedule.num_stages == slow.stage
    if slow.rank is not None:
        hit &= ranks == slow.rank

    def scaled(values: npt.NDArray[np.float64], *ops: str) -> npt.NDArray[np.float64]:
        factor = np.where(hit, slow.factor, 1.0) if slow.op is None or slow.op in ops else np.ones(len(hit))
        result: npt.NDArray[np.float64] = values * (factor if values.ndim == 1 else factor[:, None])
        return result

    return replace(
        costs,
        forward_s=scaled(costs.forward_s, "forward"),
        backward_input_s=scaled(costs.backward_input_s, "backward", "backward_input"),
        backward_weight_s=scaled(costs.backward_weight_s, "backward", "backward_weight"),
    )


def _slow_link(schedule: Schedule, costs: Costs, factor: float, link: tuple[int, int]) -> Costs:
    ranks = np.asarray(schedule.rank_of_chunk)
    behind, before = np.roll(ranks, -1), np.roll(ranks, 1)
    forward = ((ranks == link[0]) & (behind == link[1])) | ((ranks == link[1]) & (behind == link[0]))
    backward = ((ranks == link[0]) & (before == link[1])) | ((ranks == link[1]) & (before == link[0]))
    return replace(
        costs,
        forward_transfer_s=costs.forward_transfer_s * np.where(forward, factor, 1.0),
        backward_transfer_s=costs.backward_transfer_s * np.where(backward, factor, 1.0),
    )


def _check(schedule: Schedule, slow: Slow, file: str) -> None:
    p, stages = schedule.num_ranks, schedule.num_stages
    mistakes = []
    if slow.stage is not None and slow.stage >= stages:
        mistakes.append(Mistake(file, "stage", slow.stage, f"0 to {stages - 1}", problem="does not exist"))
    if slow.rank is not None and slow.rank >= p:
        mistakes.append(Mistake(file, "rank", slow.rank, f"0 to {p - 1}, a pipeline rank", problem="does not exist"))
    if slow.link is not None:
        neighbours = {
            tuple(sorted((schedule.rank_of_chunk[c], schedule.rank_of_chunk[c + 1])))
            for c in range(schedule.num_chunks - 1) if not schedule.is_last(c)
        }  # fmt: skip
        if tuple(sorted(slow.link)) not in neighbours or slow.link[0] == slow.link[1]:
            legal = ", ".join(f"{a}-{b}" for a, b in sorted(neighbours) if a != b)
            mistakes.append(Mistake(file, "link", f"{slow.link[0]}-{slow.link[1]}", legal, problem="carries no messages"))
    if mistakes:
        raise InputError(mistakes)
