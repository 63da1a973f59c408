"""The certificate of a proof: what was run, what was compared, the worst figures, the verdict; as JSON and as one screen of text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from meshwright.diff.mismatch import Mismatch, by_rank
from meshwright.units import format_number_of

SCHEMA = "meshwright.certificate/1"
SHOWN = 8
"""Mismatches on the screen; the JSON has MOST_MISMATCHES of them."""
MOST_MISMATCHES = 200


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes that blocks save and that ranks keep: how many were compared, and (rank, what, predicted, measured) where they differ."""

    compared: int
    mismatches: tuple[tuple[int, str, int, int], ...] = ()

    def plus(self, other: Memory) -> Memory:
        return Memory(compared=self.compared + other.compared, mismatches=self.mismatches + other.mismatches)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The outcome of one proof.

    Attributes:
        dtype: what computed. bound: the largest error that passes. ranks: processes that ran.
        model, layout, seq, batch, steps, seed: what was run, after scaling; plan_layout: the plan's own.
        scaled: what was changed to fit the machine; lost: what the plan exercises and the run did not.
        max_loss_error, max_grad_error, max_weight_error, max_norm_error: DESIGN's definitions; None where the run did not get there.
        first: where numbers go wrong first (first_wrong.py). worst: where the worst gradient and weight errors are.
        drift: largest difference between copies on different ranks.
        predicted, recorded: events over all ranks; mismatches: first divergence first.
        disagreements: of ranks among each other, from the cross-check.
        failures: what ended the run, first cause first. problems: whatever else is wrong.
        dry: no numbers were computed; ``ranks`` of the true layout were run one by one.
    """

    plan_hash: str
    versions: dict[str, str]
    dtype: str
    bound: float
    ranks: int
    model: str
    layout: str
    plan_layout: str
    seq: int
    batch: int
    steps: int
    seed: int | None
    scaled: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    max_loss_error: float | None = None
    max_grad_error: float | None = None
    max_weight_error: float | None = None
    max_norm_error: float | None = None
    first: str | None = None
    worst: tuple[str, ...] = ()
    drift: float | None = None
    predicted: int = 0
    recorded: int = 0
    mismatches: tuple[Mismatch, ...] = ()
    disagreements: tuple[str, ...] = ()
    memory: Memory | None = None
    failures: tuple[dict[str, Any], ...] = ()
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    dry: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def worst_error(self) -> float | None:
        """The largest of all figures that were compared, None if none was."""
        errors = [self.max_loss_error, self.max_grad_error, self.max_weight_error, self.max_norm_error, self.drift]
        known = [error for error in errors if error is not None]
        return max(known, default=None)

    @property
    def passed(self) -> bool:
        """Whether everything was compared and nothing differs."""
        numbers = (self.max_loss_error, self.max_grad_error, self.max_weight_error, self.max_norm_error)
        complete = self.predicted == self.recorded and (self.predicted > 0 or self.ranks == 1)
        close = complete and (self.dry or all(error is not None and error <= self.bound for error in (*numbers, self.drift)))
        wrong = self.mismatches or self.disagreements or self.failures or self.problems or (self.memory and self.memory.mismatches)
        return close and not wrong

    def as_json(self) -> dict[str, Any]:
        """DESIGN section 7's keys, and what else there is to know."""
        judged = {
            "schema": SCHEMA,
            "verdict": "pass" if self.passed else "fail",
            "dtype": self.dtype,
            "ranks": self.ranks,
            "layout": self.layout,
            "scaled": list(self.scaled),
            "lost": list(self.lost),
            "max_loss_error": _finite(self.max_loss_error),
            "max_grad_error": _finite(self.max_grad_error),
            "max_weight_error": _finite(self.max_weight_error),
            "max_norm_error": _finite(self.max_norm_error),
            "worst_error": _finite(self.worst_error),
            "bound": self.bound,
            "first": self.first,
            "worst": list(self.worst),
            "drift": _finite(self.drift),
            "collectives": self._collectives_json(),
            "memory": self._memory_json(),
            "disagreements": list(self.disagreements),
            "failures": list(self.failures),
            "problems": list(self.problems),
        }
        keys = ("plan_hash", "plan_layout", "model", "seq", "batch", "steps", "seed", "versions", "seconds", "dry")
        return judged | {key: getattr(self, key) for key in keys} | {"notes": list(self.notes)}

    def _collectives_json(self) -> dict[str, Any]:
        mismatches = [mismatch.as_json() for mismatch in self.mismatches[:MOST_MISMATCHES]]
        counts = {"predicted": self.predicted, "recorded": self.recorded, "mismatch_count": len(self.mismatches)}
        return {**counts, "mismatches": mismatches}

    def _memory_json(self) -> dict[str, Any] | None:
        if self.memory is None:
            return None
        return {"compared": self.memory.compared, "mismatches": [list(mismatch) for mismatch in self.memory.mismatches]}

    def text(self) -> str:
        """One screen."""
        head = f"proof {'PASSED' if self.passed else 'FAILED'}: {self.model}, {self.layout}"
        lines = [head, f"  plan      {self.plan_layout}  {self.plan_hash}"]
        if self.scaled:
            lines += _wrapped("  scaled    ", ", ".join(self.scaled))
        if self.lost:
            lines += _wrapped("  not shown ", "; ".join(self.lost))
        lines.append(f"  run       {self.ranks} ranks, {format_number_of(self.steps, 'step')} of {self.batch} sequences of"
                     f" {self.seq} tokens, {self.dtype}, {self.seconds:.1f} s")  # fmt: skip
        lines += self._number_lines() + self._traffic_lines() + self._memory_lines()
        lines += [f"  ranks disagree: {text}" for text in self.disagreements[:SHOWN]]
        lines += [f"  {line}" for problem in self.problems for line in problem.splitlines()] + self._stack_lines()
        lines += [f"  note      {note}" for note in self.notes]
        return "\n".join(lines)

    def _number_lines(self) -> list[str]:
        if self.max_loss_error is None:
            return [f"  numbers   {'none: a dry run' if self.dry else 'not compared'}"]
        figures = {
            "loss": self.max_loss_error,
            "gradients": self.max_grad_error,
            "weights": self.max_weight_error,
            "norm": self.max_norm_error,
            "copies": self.drift,
        }
        text = ", ".join(f"{name} {error:.1e}" for name, error in figures.items() if error is not None)
        lines = [f"  numbers   largest errors: {text}; bound {self.bound:.0e}"]
        if not self.passed:
            lines += [] if self.first is None else [f"            first: {self.first}"]
            lines += [f"            worst: {where}" for where in self.worst]
        return lines

    def _traffic_lines(self) -> list[str]:
        lines = [f"  traffic   {self.predicted:,} collectives predicted, {self.recorded:,} recorded, {len(self.mismatches):,} mismatches"]
        told = by_rank(self.mismatches)
        lines += [f"    {line}" for line in told[:SHOWN]]
        if len(told) > SHOWN:
            lines.append(f"    ... and {len(told) - SHOWN:,} more (--json lists them)")
        return lines

    def _stack_lines(self) -> list[str]:
        """The end of the stack of the rank that failed first; the JSON has all of all ranks."""
        if not self.failures or not self.failures[0].get("stack"):
            return []
        stack = self.failures[0]["stack"].rstrip().splitlines()
        return [f"    {line}" for line in (["..."] if len(stack) > SHOWN else []) + stack[-SHOWN:]]

    def _memory_lines(self) -> list[str]:
        if self.memory is None:
            return []
        lines = [
            f"  memory    {self.memory.compared} sizes (what blocks save, what ranks keep) compared, {len(self.memory.mismatches)} differ"
        ]
        lines += [f"    rank {rank}, {block}: predicted {predicted:,}, measured {measured:,}"
                  for rank, block, predicted, measured in self.memory.mismatches[:SHOWN]]  # fmt: skip
        return lines


def _finite(value: float | None) -> float | str | None:
    """JSON has no infinity; it is told as a text."""
    return value if value is None or math.isfinite(value) else "infinite"


def _wrapped(head: str, text: str, width: int = 118) -> list[str]:
    from textwrap import wrap

    return wrap(text, width, initial_indent=head, subsequent_indent=" " * len(head))
