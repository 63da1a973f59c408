"""Detects ``communication-bound``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.slow.profile import Profile, profile_of
from meshwright.units import format_seconds, format_traffic

LEAST_SHARE = 0.3
"""Of the ranks' time: transfer that nothing hides. Well-laid-out dense training shows a tenth to a fifth (exposed communication of Llama 3
405B on 16,384 GPUs, by its MFU of 38 to 43 %: arXiv 2407.21783, table 4)."""


def detect(evidence: Evidence) -> Iterator[Hit]:
    """Exposed communication, waiting for late ranks left out, that takes a large part of the step."""
    profile = evidence.derived(profile_of)
    if profile is None:
        return
    waiting = _waiting_shares(profile)
    exposed: dict[tuple[str, str], float] = defaultdict(float)
    for split in profile.splits:
        for kind, seconds in split.exposed_s.items():
            exposed[kind] += seconds * (1 - waiting.get(kind, 0.0))
    total_s = sum(exposed.values())
    if total_s < LEAST_SHARE * profile.window_s:
        return
    (group, op), most_s = max(exposed.items(), key=lambda item: item[1])
    alone = not waiting
    yield Hit(
        group=group or None, collective=op, confidence="low" if alone else "medium",
        words={"share": f"{total_s / profile.window_s:.1%}", "what": f"{op} of {group}" if group else op},
        evidence=(
            f"{op} takes {format_seconds(most_s / len(profile.ranks) / profile.steps)} of it a step and rank, while nothing is computed",
            *_rates(profile, group, op),
            *(("Waiting for other ranks is in it: with one rank's trace alone, it cannot be told from transfer",) if alone else ()),
        ),
        weight=total_s / len(profile.ranks) / profile.steps,
    )  # fmt: skip


def _waiting_shares(profile: Profile) -> dict[tuple[str, str], float]:
    """By (group, op) the part of the time in it that is waiting; a message's receiver waits for the pipeline."""
    spent: dict[tuple[str, str], float] = defaultdict(float)
    waited: dict[tuple[str, str], float] = defaultdict(float)
    for each in profile.meetings:
        for op in ("send", "recv") if each.op == "send" else (each.op,):
            spent[each.group, op] += sum(each.duration_s.values())
            waited[each.group, op] += each.waited_s
    return {kind: waited[kind] / seconds for kind, seconds in spent.items() if seconds}


def _rates(profile: Profile, group: str, op: str) -> Iterator[str]:
    mine = [each for each in profile.collectives if (each.group, each.op) == (group, op) and each.payload_bytes]
    if mine and (seconds := sum(each.transfer_s for each in mine)):
        size = sum(each.payload_bytes for each in mine)
        each = f"{format_traffic(size / len(mine))} in {format_seconds(seconds / len(mine))}"
        yield f"Its transfers move {each}: {size / seconds / 1e9:.3g} GB/s of payload"
