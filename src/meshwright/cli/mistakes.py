"""How a wrong command line or a wrong input is told: as text on stderr, or as one JSON object on stdout."""

from __future__ import annotations

from collections.abc import Iterable

import click

from meshwright.cli.output import print_json, tell
from meshwright.errors import Mistake, did_you_mean

COMMAND_LINE = "command line"
"""Stands where the name of a file stands in other mistakes."""


def report_mistakes(mistakes: Iterable[Mistake], as_json: bool) -> None:
    """Print all of them; the caller exits with 2."""
    if as_json:
        print_json({"errors": [mistake.as_json() for mistake in mistakes]})
        return
    for mistake in mistakes:
        tell(f"error: {mistake}")


def usage_mistake(error: click.UsageError, ctx: click.Context | None = None) -> Mistake:
    """What click found wrong, in our form; ``ctx`` is for the errors that click leaves without one."""
    ctx = error.ctx or ctx
    manual = f"`{ctx.command_path} --help`" if ctx else "`meshwright --help`"
    where, legal = f"see {manual}", f"what {manual} lists"
    if isinstance(error, click.exceptions.NoSuchCommand):
        commands = _commands(ctx)
        hint = did_you_mean(error.command_name, commands) or where
        return Mistake(COMMAND_LINE, error.command_name, None, ", ".join(commands), hint, "is not a command")
    if isinstance(error, click.NoSuchOption):
        options = _options(ctx)
        hint = did_you_mean(error.option_name, options) or where
        return Mistake(COMMAND_LINE, error.option_name, None, ", ".join(options), hint, "is not an option")
    if isinstance(error, click.MissingParameter):
        return Mistake(COMMAND_LINE, _name(error.param), None, _help(error.param) or legal, where, "is missing")
    if isinstance(error, click.BadParameter):
        return Mistake(COMMAND_LINE, _name(error.param), None, legal, where, f"is not legal: {error.message}")
    if isinstance(error, click.BadOptionUsage):
        return Mistake(COMMAND_LINE, error.option_name, None, legal, where, f"is used wrongly: {error.message}")
    name = (ctx.info_name if ctx else None) or "meshwright"
    return Mistake(COMMAND_LINE, name, None, legal, where, f"is used wrongly: {error.message}")


def _commands(ctx: click.Context | None) -> list[str]:
    return ctx.command.list_commands(ctx) if ctx and isinstance(ctx.command, click.Group) else []


def _options(ctx: click.Context | None) -> list[str]:
    params = ctx.command.get_params(ctx) if ctx else []
    return [_name(param) for param in params if isinstance(param, click.Option)]


def _name(param: click.Parameter | None) -> str:
    """``--gpus`` of an option, ``PLAN`` of an argument."""
    if param is None:
        return ""
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.metavar or param.human_readable_name


def _help(param: click.Parameter | None) -> str:
    return (param.help or "") if isinstance(param, click.Option) else ""
