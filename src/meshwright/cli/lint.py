"""``meshwright lint``: a launch script or a config against the rules of layouts."""

from __future__ import annotations

from pathlib import Path

import click

from meshwright.cli.options import command
from meshwright.cli.output import emit


@command()
@click.argument("file", type=click.Path(path_type=Path), metavar="LAUNCH-SCRIPT|CONFIG")
@click.option("--cluster", metavar="C", help="Judge by this cluster's links; without it, nodes of 8 GPUs or as many as the file says.")
@click.option("--gpus", type=click.IntRange(1, 10**8), help="GPUs of the job, where the file does not say.")
def lint(file: Path, cluster: str | None, gpus: int | None, as_json: bool) -> None:
    """Check a launch script or a config before it runs.

    Megatron-LM, torchtitan, vLLM and SGLang command lines in a shell script, a torchtitan job file (TOML), a DeepSpeed config (JSON), an
    Accelerate config for FSDP (YAML). Nothing of the file is executed. Exit code 1 if anything is found.
    """
    from meshwright.lint.judge import lint as judged
    from meshwright.render.lint import lint_text

    answer = judged(file, cluster, gpus)
    emit(as_json, answer.as_json(), lambda: lint_text(answer))
    click.get_current_context().exit(answer.exit_code)
