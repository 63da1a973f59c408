"""The ``meshwright`` command: its list of verbs, and what becomes of errors.

Exit codes: 0 yes; 1 it ran and the answer is no; 2 the user's input is wrong. A reader that closes the pipe ends the
program quietly with 141, Ctrl-C with 130, as a shell would report them.

A command is a file of this folder with a ``click`` command of the same name, built with ``cli.options.command``. It is
imported when it is called and for ``--help``, so it must import numpy, rich and the heavy parts of ours inside its functions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn

import click

from meshwright import __version__
from meshwright.cli.mistakes import report_mistakes, usage_mistake
from meshwright.cli.output import print_json, tell
from meshwright.errors import InputError, NoAnswer

COMMANDS = (
    "plan", "estimate", "explain", "memory", "ranks", "timeline", "prove", "train", "serve",
    "collectives", "bench-collectives", "validate", "calibrate", "diagnose", "watch", "lint", "catalog",
)  # fmt: skip
"""Every verb there may be, in the order of ``--help``; one without a file is not offered."""


class Meshwright(click.Group):
    """A group that finds its commands in files, and turns our exceptions into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if find_spec(f"meshwright.cli.{_file(name)}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        file = _file(cmd_name)
        command: click.Command = getattr(import_module(f"meshwright.cli.{file}"), file)
        return command

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> NoReturn:
        """Run one command line and exit; see the module for the codes."""
        words = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in words
        options.update(standalone_mode=False)
        try:
            code = super().main(words, *rest, **options)
            sys.stdout.flush()
        except InputError as error:
            report_mistakes(error.mistakes, as_json)
            sys.exit(2)
        except click.exceptions.NoArgsIsHelpError as error:
            tell(error.ctx.get_help())
            sys.exit(2)
        except click.UsageError as error:
            report_mistakes([usage_mistake(error)], as_json)
            sys.exit(2)
        except NoAnswer as no:
            if as_json:
                print_json(no.answer if no.answer is not None else {"answer": "no", "why": str(no)})
            else:
                tell(str(no))
            sys.exit(1)
        except (click.Abort, KeyboardInterrupt):
            tell("interrupted")
            sys.exit(130)
        except BrokenPipeError:
            _silence_stdout()
            sys.exit(141)
        sys.exit(code if isinstance(code, int) else 0)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _closed_pipe():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_pipe():
            return super().invoke(ctx)


def _file(command: str) -> str:
    return command.replace("-", "_")


@contextmanager
def _closed_pipe() -> Iterator[None]:
    """Click would exit with 1 when nobody reads any more; here that means "the answer is no"."""
    try:
        yield
    except BrokenPipeError:
        _silence_stdout()
        raise click.exceptions.Exit(141) from None


def _silence_stdout() -> None:
    """Keep the interpreter from complaining when it flushes at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # not a real file, as under a test
        pass


@click.group(cls=Meshwright, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="meshwright", message="%(prog)s %(version)s")
def cli() -> None:
    """Plan, explain, prove, run and diagnose parallel Transformers.

    MODEL is a catalog name, a Hugging Face config.json or a folder with one. PLAN is a saved plan.toml, or
    MODEL --cluster C --layout "...". Every command takes --json: one object on stdout and nothing else.
    """


def main() -> NoReturn:
    """The entry point of the installed ``meshwright``."""
    cli.main(prog_name="meshwright")
