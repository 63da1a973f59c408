"""Everything that was read, as the rules see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from meshwright.job import Job

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the readers found.

    Attributes:
        pieces: what the readers gave, in the order of the files; each reader has its own types (``RankRecord``, ``Trace``).
        plan: what the job was planned to do, if the user said so.
    """

    pieces: tuple[object, ...] = ()
    plan: Job | None = None
    _derived: dict[object, object] = field(default_factory=dict, repr=False, compare=False)

    def of(self, kind: type[T]) -> list[T]:
        """All pieces of a type."""
        return [piece for piece in self.pieces if isinstance(piece, kind)]

    def derived(self, analysis: Callable[[Evidence], T]) -> T:
        """``analysis(self)``, worked out once: rules share what they all look at."""
        if analysis not in self._derived:
            self._derived[analysis] = analysis(self)
        return cast(T, self._derived[analysis])


@dataclass(frozen=True, kw_only=True)
class Hit:
    """What a rule's ``detect`` gives: a Finding without what the rule's YAML says.

    Attributes:
        ranks, group, collective, evidence, confidence: as those of Finding, with ``confidence`` one of CONFIDENCES.
        words: fills the placeholders of the rule's ``headline`` and ``remedy``; ``ranks``, ``group`` and ``collective`` are there already.
        headline: in place of the rule's, where that would name culprits and nothing tells who they are.
        weight: orders the hits of one kind, the largest first: seconds lost a step, for what is slow.
    """

    ranks: tuple[int, ...] = ()
    group: str | None = None
    collective: str | None = None
    evidence: tuple[str, ...] = ()
    confidence: Any = "high"
    words: dict[str, object] = field(default_factory=dict)
    headline: str = ""
    weight: float = 0.0
