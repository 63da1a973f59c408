"""Dumps that torch's own flight recorder writes here, on gloo: whatever version is installed, its pickle and its JSON are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from dumping_program import CULPRIT, RANKS, run
from meshwright.diagnose.judge import diagnose
from meshwright.runtime.launch import run_ranks

pytestmark = pytest.mark.dist


@pytest.mark.parametrize(("fault", "code"), [("", None), ("missing", "missing-rank"), ("op", "op-mismatch")])
def test_the_culprit_is_named_from_torchs_own_dumps(fault: str, code: str | None, tmp_path: Path) -> None:
    run_ranks(run, RANKS, (fault, str(tmp_path)), timeout_s=90)
    for kind in ("pickle", "json"):
        diagnosis = diagnose([tmp_path / kind])
        assert diagnosis.read == (f"{RANKS} flight-recorder dumps",)
        if code is None:
            assert (diagnosis.verdict, diagnosis.findings) == ("healthy", ())
        else:
            (headline,) = diagnosis.findings
            assert (headline.code, headline.ranks) == (code, (CULPRIT,))
            assert headline.collective is not None and headline.collective.endswith(" 4")
