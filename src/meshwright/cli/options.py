"""Arguments that several commands share, and the types that check them.

A value that is wrong is noted and parsing goes on, so that one run tells every mistake of the command line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from meshwright.cli.mistakes import COMMAND_LINE, usage_mistake
from meshwright.errors import InputError, Mistake, did_you_mean
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import PRECISIONS
from meshwright.units import parse_bytes, parse_count

MAX_COUNT = 10**8
"""No job has more GPUs, tokens in a sequence or sequences in a batch; beyond it a number is a slip."""

MAX_BYTES = 1 << 50
"""1 PiB."""

DTYPE_WORDS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp32": "float32",
    "fp64": "float64",
    "double": "float64",
    "float8": "fp8",
}
"""PyTorch's and other words for precisions."""

MAX_TOKENS = 10**15
"""A training run's tokens; integers stay exact in float64 up to 9 x 10^15."""

STACK_NAMES = tuple(STACKS)
"""What a plan can be priced as."""

F = TypeVar("F", bound=Callable[..., Any])
_NOTED = "meshwright.mistakes"


class Command(click.Command):
    """A command that tells all mistakes of its arguments together."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        usage: list[Mistake] = []
        rest: list[str] = []
        try:
            rest = super().parse_args(ctx, args)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            usage = [usage_mistake(error, ctx)]
        mistakes = [*ctx.meta.get(_NOTED, ()), *usage]
        if mistakes:
            raise InputError(mistakes)
        return rest


def command(**attributes: Any) -> Callable[[Callable[..., Any]], Command]:
    """``@command()`` makes a function a command, with ``--json`` as its keyword ``as_json``."""

    def decorate(function: Callable[..., Any]) -> Command:
        made = click.command(cls=Command, **attributes)(function)
        made.params.append(click.Option(["--json", "as_json"], is_flag=True, help="One JSON object on stdout."))
        return made

    return decorate


def note(ctx: click.Context | None, param: click.Parameter | None, value: object, legal: str, hint: str = "") -> None:
    """Remember that this argument is wrong; Command.parse_args raises it with the others."""
    mistake = Mistake(COMMAND_LINE, max(param.opts, key=len) if param else "", value, legal, hint)
    if ctx is None:
        raise InputError([mistake])
    ctx.meta.setdefault(_NOTED, []).append(mistake)


class Count(click.ParamType[int | None]):
    """A whole number from 1 to 10^8, written in digits."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if re.fullmatch(r"[0-9]{1,9}", str(value)) and 1 <= int(value) <= MAX_COUNT:
            return int(value)
        note(ctx, param, value, "a whole number from 1 to 10^8", "digits alone: 8192, not 8k or 8e3")
        return None


class Index(click.ParamType[int | None]):
    """A whole number from 0 to 10^8, written in digits: a rank, a layer."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        if re.fullmatch(r"[0-9]{1,9}", str(value)) and int(value) <= MAX_COUNT:
            return int(value)
        note(ctx, param, value, "a whole number from 0 to 10^8", "digits alone, counted from 0")
        return None


class Tokens(click.ParamType[int | None]):
    """A number of tokens such as 15T, 300B or 1000000."""

    name = "TOKENS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        try:
            tokens = parse_count(str(value))
        except (ValueError, OverflowError):
            tokens = 0
        if 1 <= tokens <= MAX_TOKENS:
            return tokens
        note(ctx, param, value, "a number from 1 to 10^15, with K, M, B or T if you like: 15T, 300B", "tokens of the whole run")
        return None


class Size(click.ParamType[int | None]):
    """A number of bytes with a unit."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        try:
            found = parse_bytes(str(value))
        except (ValueError, OverflowError):
            found = 0
        if 1 <= found <= MAX_BYTES:
            return found
        note(ctx, param, value, "bytes with a unit, up to 1 PiB: 128MiB, 64KB, 1GiB")
        return None


class Fraction(click.ParamType[float | None]):
    """A number above 0 and up to 1."""

    name = "FRACTION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        # The pattern has no way to spell nan or infinity.
        text = str(value)
        if re.fullmatch(r"[0-9]{0,3}(\.[0-9]{0,12})?", text) and any(map(str.isdigit, text)) and 0 < float(text) <= 1:
            return float(text)
        note(ctx, param, value, "a number above 0 and up to 1, e.g. 0.92", "a fraction, not percent")
        return None


class OneOf(click.ParamType[str | None]):
    """One of a few names, with a suggestion for a near miss.

    Args:
        elsewhere: words that others use, and the name here.
    """

    def __init__(self, metavar: str, names: tuple[str, ...], elsewhere: Mapping[str, str] | None = None) -> None:
        self.name = metavar
        self.names = names
        self.elsewhere = elsewhere or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | None:
        if value in self.names:
            return str(value)
        known = self.elsewhere.get(str(value).lower())
        hint = f"it is called `{known}` here" if known else did_you_mean(str(value), self.names)
        note(ctx, param, value, ", ".join(self.names), hint)
        return None


class StackName(OneOf):
    """The name of a stack, or a TOML file that ``calibrate`` has written."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | None:
        return str(value) if str(value).lower().endswith(".toml") else super().convert(value, param, ctx)


@dataclass(frozen=True, kw_only=True)
class PlanArguments:
    """What the user said of a job, as it was said: names are not looked up and layouts not parsed yet.

    Attributes:
        subject: the first argument: a model's name, config.json or folder, or a plan.toml.
        cluster, gpus, seq, batch, precision, stack: None where the user left them out.
        layouts: every ``--layout`` in order.
        memory_fraction: of the device's memory that a plan may fill; None where the user left it out.
    """

    subject: str
    cluster: str | None
    gpus: int | None
    layouts: tuple[str, ...]
    seq: int | None
    batch: int | None
    precision: str | None
    memory_fraction: float | None
    stack: str | None

    @property
    def is_plan(self) -> bool:
        """Whether the subject is a saved plan rather than a model."""
        return self.subject.endswith(".toml")


def plan_arguments(subject: str = "PLAN", *, layouts: str = "one") -> Callable[[F], F]:
    """Give a command the arguments of a job, as its keyword ``job`` (a PlanArguments).

    Args:
        subject: how the first argument is called in the help, ``PLAN`` or ``MODEL``.
        layouts: "none" for a command that chooses the layout, "one", or "many" where ``--layout`` may be repeated.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def with_job(**values: Any) -> Any:
            given = values.pop("layouts", ())
            values["layouts"] = given if isinstance(given, tuple) else () if given is None else (given,)
            names = PlanArguments.__dataclass_fields__
            job = PlanArguments(**{name: values.pop(name) for name in names})
            return function(job=job, **values)

        decorated: Any = with_job
        for option in reversed(_job_options(subject, layouts)):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def _job_options(subject: str, layouts: str) -> list[Callable[[Any], Any]]:
    options = [
        click.argument("subject", metavar=subject),
        click.option("--cluster", metavar="C", help="Catalog name or a TOML file."),
        click.option("--gpus", type=Count(), help="GPUs of the job.  [default: what cluster or layout says]"),
    ]
    if layouts != "none":
        again = " Repeat it to compare." if layouts == "many" else ""
        text = f'How the model is split, e.g. "tp=8 sp dp=1x8 zero=3 mb=1".{again}'
        options.append(click.option("--layout", "layouts", metavar="LAYOUT", multiple=layouts == "many", help=text))
    return [
        *options,
        click.option("--seq", type=Count(), help="Tokens of a sequence."),
        click.option("--batch", type=Count(), help="Sequences per optimizer step of the whole job."),
        click.option("--precision", type=OneOf("RECIPE", tuple(PRECISIONS), DTYPE_WORDS), help=f"Dtypes: {', '.join(PRECISIONS)}."),
        click.option("--memory-fraction", type=Fraction(), help="Part of the memory to fill.  [default: what the plan says, or 0.92]"),
        click.option(
            "--stack", type=StackName("STACK", STACK_NAMES), help=f"As this runs it: {', '.join(STACK_NAMES)}, or calibrate's file."
        ),
    ]
