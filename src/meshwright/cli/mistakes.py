"""How a wrong command line or a wrong input is told: as text on stderr, or as one JSON object on stdout."""

from __future__ import annotations

from collections.abc import Iterable

import click

from meshwright.cli.output import print_json
from meshwright.errors import Mistake

COMMAND_LINE = "command line"
"""Stands where the name of a file stands in other mistakes."""


def report_mistakes(mistakes: Iterable[Mistake], as_json: bool) -> None:
    """Print all of them; the caller exits with 2."""
    if as_json:
        print_json({"errors": [mistake.as_json() for mistake in mistakes]})
        return
    for mistake in mistakes:
        click.echo(f"error: {mistake}", err=True)


def usage_mistakes(error: click.UsageError) -> list[Mistake]:
    """What click found wrong, in our form."""
    where = f"see `{error.ctx.command_path} --help`" if error.ctx else ""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        commands = _commands_of(error)
        return [Mistake(COMMAND_LINE, "COMMAND", None, commands, where, "is missing")]
    if isinstance(error, click.exceptions.NoSuchCommand):
        hint = _did_you_mean(error.possibilities) or where
        return [Mistake(COMMAND_LINE, error.command_name, None, _commands_of(error), hint, "is not a command")]
    if isinstance(error, click.NoSuchOption):
        hint = _did_you_mean(error.possibilities) or where
        return [Mistake(COMMAND_LINE, error.option_name, None, _options_of(error), hint, "is not an option")]
    if isinstance(error, click.MissingParameter):
        return [Mistake(COMMAND_LINE, _name_of(error.param), None, _help_of(error.param), where, "is missing")]
    if isinstance(error, click.BadParameter):
        return [Mistake(COMMAND_LINE, _name_of(error.param), None, "", where, f"is not legal: {error.message}")]
    if isinstance(error, click.BadOptionUsage):
        return [Mistake(COMMAND_LINE, error.option_name, None, "", where, f"is used wrongly: {error.message}")]
    return [Mistake(COMMAND_LINE, error.ctx.info_name or "" if error.ctx else "", None, "", where, f"is used wrongly: {error.message}")]


def _did_you_mean(names: list[str] | None) -> str:
    return f"did you mean `{names[0]}`?" if names else ""


def _commands_of(error: click.UsageError) -> str:
    if error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return ""
    return ", ".join(error.ctx.command.list_commands(error.ctx))


def _options_of(error: click.UsageError) -> str:
    if error.ctx is None:
        return ""
    options = [param for param in error.ctx.command.get_params(error.ctx) if isinstance(param, click.Option)]
    return ", ".join(max(option.opts, key=len) for option in options)


def _name_of(param: click.Parameter | None) -> str:
    if param is None:
        return ""
    return max(param.opts, key=len) if isinstance(param, click.Option) else param.make_metavar(click.Context(click.Command("")))


def _help_of(param: click.Parameter | None) -> str:
    return (param.help or "") if isinstance(param, click.Option) else ""
