"""A stack by its name, or out of a file that ``meshwright calibrate`` has written: a named one with constants fitted to a user's runs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Mistake, Mistakes, did_you_mean
from meshwright.spec.efficiency import CONSTANTS, NAMES, Efficiency
from meshwright.spec.files import read_toml
from meshwright.spec.stack import STACKS, Stack
from meshwright.spec.tables import Table
from meshwright.spec.toml_writer import toml_text

HEADER = "# Written by `meshwright calibrate`: constants of the time model, fitted to measured runs. For --stack.\n\n"

LARGEST_FACTOR = 1e3
"""No constant is further from the catalog's; steps of it stay finite, and its slips are found."""

LARGEST_LEVEL = 10.0
"""A site is at most ten times as slow, or as fast."""

LARGEST_SPREAD = 1.0


def is_stack_file(text: str) -> bool:
    """Whether ``--stack`` names a file."""
    return text.lower().endswith(".toml")


def resolve_stack(text: str, key: str = "--stack", file: str = "command line") -> Stack:
    """A name of STACKS, or a TOML file. Raises InputError: no such name, or what is wrong with the file."""
    if is_stack_file(text):
        return load_stack(Path(text))
    if text not in STACKS:
        raise InputError([Mistake(file, key, text, f"{', '.join(STACKS)}, or a TOML file", did_you_mean(text, STACKS))])
    return STACKS[text]


def load_stack(path: Path) -> Stack:
    """The stack of a file. Raises InputError with every mistake in it."""
    with Mistakes.of(str(path)) as mistakes:
        found = read_stack(Table(read_toml(path), mistakes), str(path))
    assert found is not None
    return found


def read_stack(table: Table, file: str) -> Stack | None:
    """The stack of a file's tables, or of a plan that holds them; None where mistakes were noted. file: where it was written."""
    base = table.choice("base", STACKS)
    level = table.number("level", low=1 / LARGEST_LEVEL, high=LARGEST_LEVEL)
    spread = table.number("spread", above=0.0, high=LARGEST_SPREAD)
    source = table.text("source", "")
    inner = table.table("efficiency")
    values = {name: _constant(inner, name) for name in NAMES} if inner is not None else {}
    if inner is not None:
        inner.refuse_unread()
    table.refuse_unread()
    if inner is None or not table.sound("base", "level", "spread", "source") or not inner.sound(*NAMES):
        return None
    return replace(
        STACKS[base], name=Path(file).stem, base=base, file=file, level=level, spread=spread, efficiency=Efficiency(**values),
        source=source or STACKS[base].source,
    )  # fmt: skip


def _constant(table: Table, name: str) -> float:
    prior = CONSTANTS[name].prior
    return table.number(name, low=prior / LARGEST_FACTOR, high=prior * LARGEST_FACTOR)


def stack_table(stack: Stack) -> dict[str, Any]:
    """The tables of a calibrated stack, to the last bit."""
    assert stack.efficiency is not None and stack.spread is not None
    values = {"base": stack.framework, "level": stack.level, "spread": stack.spread, "source": stack.source}
    return {**values, "efficiency": asdict(stack.efficiency)}


def stack_text(stack: Stack) -> str:
    """The file of a calibrated stack; six digits of a fitted constant are more than it has."""
    values = stack_table(stack)
    short = {name: float(f"{value:.6g}") for name, value in values["efficiency"].items()}
    return HEADER + toml_text({**values, "efficiency": short})
