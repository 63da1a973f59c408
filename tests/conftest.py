"""Fixtures that every test may use, and how property tests and tests that need a GPU run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import settings

from shared_data import ROOT

# Tests run side by side: torch's own threads would only wait for each other's cores. Read when torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadline: a test never times things. Derandomised, so that a check that was green stays green on the same code;
# HYPOTHESIS_PROFILE=explore looks for new counterexamples.
settings.register_profile("check", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "check"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="write the files of tests/golden anew instead of comparing with them")


@pytest.fixture
def meshwright() -> Callable[..., Result]:
    """``meshwright("plan", "--json", ...)`` runs the command line in this process."""
    from meshwright.cli.app import cli

    def run(*args: str) -> Result:
        result = CliRunner().invoke(cli, list(args), prog_name="meshwright")
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception  # a traceback is never an answer
        return result

    return run


@pytest.fixture
def fresh_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``fresh_python("-c", code, src=folder)`` runs a new interpreter; for tests marked ``dist``."""

    def run(*args: str, src: Path = ROOT / "src", **options: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(src)}
        settings = {"capture_output": True, "text": True, "timeout": 60, "env": environment, **options}
        return subprocess.run([sys.executable, *args], check=False, **settings)  # type: ignore[call-overload]

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked ``gpu`` where there is none; torch is only asked if there are any."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
