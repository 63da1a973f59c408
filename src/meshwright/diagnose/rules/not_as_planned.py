"""Detects ``not-as-planned``."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.diagnose.agreement import disagreements
from meshwright.diagnose.evidence import Evidence, Hit


def detect(evidence: Evidence) -> Iterator[Hit]:
    """The first place where recordings leave the plan, and all ranks that leave it there."""
    if evidence.plan is None:
        return
    # Here, since all of the ledger comes with them: most diagnoses have no plan.
    from meshwright.diagnose.planned_traffic import against_plan
    from meshwright.diff.mismatch import by_rank

    found = evidence.derived(against_plan)
    if not found:
        return
    first = found[0]
    same = [mismatch for mismatch in found if (mismatch.kind, mismatch.position) == (first.kind, first.position)]
    event = first.recorded or first.expected
    assert event is not None
    known = evidence.derived(disagreements)
    count = "1 difference" if len(found) == 1 else f"{len(found):,} differences"
    yield Hit(
        ranks=tuple(mismatch.rank for mismatch in same), group=first.recorded.group if first.recorded else first.axis,
        collective=event.op, evidence=tuple(by_rank(found)[:6]), words={"what": first.message, "count": count},
        # Where ranks that disagree are told apart, that is the headline; where they are not, the plan tells them apart.
        weight=1.0 if known and not known[0].certain else -1.0,
    )  # fmt: skip
