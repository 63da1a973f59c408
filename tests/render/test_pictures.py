"""The documentation's pictures of schedules are what the program draws (``python docs/pipelines.py`` draws them again)."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from meshwright.spec.layout import SCHEDULES
from shared_data import ROOT


@pytest.fixture(scope="module")
def pipelines() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_pipelines", ROOT / "docs" / "pipelines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_schedule_has_a_picture(pipelines: ModuleType) -> None:
    assert set(pipelines.CASES) == set(SCHEDULES)
    assert {path.stem for path in pipelines.PICTURES.glob("*.svg")} == set(SCHEDULES)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_picture_is_what_the_program_draws(pipelines: ModuleType, name: str) -> None:
    assert (pipelines.PICTURES / f"{name}.svg").read_text(encoding="utf-8") == pipelines.picture(name)
