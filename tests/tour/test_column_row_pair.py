"""A column-parallel and a row-parallel layer on "ranks" that are list entries: the ledger's shards and derived collectives compute
what numpy computes on one device. The page that shows it is docs/tour.md, the code docs/pair.py."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from meshwright.sharding import Redistribution


@pytest.fixture
def pair() -> ModuleType:
    path = Path(__file__).parents[2] / "docs" / "pair.py"
    spec = spec_from_file_location("pair", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("layout", "ops"), [("tp=2 dp=1 mb=3", ["all_reduce"]), ("tp=2 sp dp=1 mb=3", ["all_gather", "reduce_scatter"])])
def test_pair_computes_what_one_device_computes(pair: ModuleType, layout: str, ops: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The bound's reason stands beside it in docs/pair.py."""
    assert pair.run(layout) < pair.BOUND
    executed = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert [op for op in executed if op != "compute"] == ops


def test_a_missing_sum_is_seen(pair: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the all_reduce each rank has its own summand."""

    def keep(move: Redistribution, held: list[np.ndarray]) -> list[np.ndarray]:
        return held

    monkeypatch.setattr(pair, "collective", keep)
    assert pair.run("tp=2 dp=1 mb=3") > 0.1
