"""The schedule of a proof with pipeline stages: the one that the layout's word says, or one from a file."""

from __future__ import annotations

from meshwright.errors import InputError, Mistake
from meshwright.schedule import Schedule, build, check_fit
from meshwright.spec.layout import Layout
from meshwright.spec.workload import Training


def schedule_of(layout: Layout, workload: Training, given: Schedule | None) -> Schedule | None:
    """What the ranks of this layout carry out; None without stages.

    zb-1p and zb-2p are made for equal durations, which is what a proof can know.

    Raises:
        InputError: ``given`` does not fit the layout.
    """
    m = layout.micro_batches(workload.batch)
    if given is not None:
        check_fit(given, layout, m)
        return given
    return build(layout.schedule, layout.pp, layout.virtual_stages, m) if layout.pp > 1 else None


def refuse_scaled(given: Schedule | None, layout: Layout, changes: tuple[str, ...]) -> None:
    """A schedule from a file is for one number of ranks and micro-batches. Raises InputError."""
    if given is not None and changes:
        problem = f"is for `{layout}` as it is, which a proof on so few ranks would scale: {', '.join(changes)}"
        hint = "--dry runs it at its true size; or name the schedule in the layout"
        raise InputError(
            [Mistake("--schedule", "schedule", given.name, f"a small model, and --ranks {layout.world_size} or more", hint, problem)]
        )


def notes_on(layout: Layout, given: Schedule | None) -> tuple[str, ...]:
    """What a certificate says of the order that was run."""
    if given is not None:
        return (f"the order of the stages is that of {given.name}",)
    if layout.pp > 1 and layout.schedule in ("zb-1p", "zb-2p"):
        return (f"{layout.schedule} is made for equal durations here; a plan's own order is made for the plan's",)
    return ()
