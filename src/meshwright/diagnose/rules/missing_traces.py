"""Detects ``missing-traces``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.evidence import Evidence, Hit
from meshwright.diagnose.finding import ranks_text
from meshwright.diagnose.slow.profile import profile_of


def detect(evidence: Evidence) -> Iterator[Hit]:
    """A profile of some of a job's ranks, or with files that were left out."""
    profile = evidence.derived(profile_of)
    if profile is None:
        return
    missing = profile.world_size - len(profile.ranks)
    if missing <= 0 and not profile.notes:
        return
    what = f"{missing} of {profile.world_size} ranks are not there" if missing > 0 else "some files were not used in full"
    told = (f"There are traces of {ranks_text(profile.ranks)}; waiting counts only among them, so it may be more",) if missing > 0 else ()
    yield Hit(words={"what": what}, evidence=(*told, *profile.notes))
