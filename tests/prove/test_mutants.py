"""A proof fails for each fault that is planted in the runtime or in the ledger, and names the place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.diff.traffic import compare_traffic
from meshwright.ledger.blocks import attention_core, head, pairs
from meshwright.ledger.expected import expected_events
from meshwright.ledger.writer import Writer
from meshwright.prove.run import ledger_of, prove
from meshwright.prove.scale import scale
from meshwright.recording.read import Recording, read_recordings
from prove.matrix import Case
from prove.mutants import MUTANTS, TP, Mutant, prove_mutant, question_of

pytestmark = [pytest.mark.dist, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_of_the_runtime_fails_the_proof_and_is_named(mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = prove_mutant(mutant, tmp_path, monkeypatch)
    assert not certificate.passed
    text = certificate.text()
    if "numbers" in mutant.told:
        assert certificate.worst_error is not None and certificate.worst_error > 1e-10
        assert not certificate.mismatches
    for words in mutant.told:
        assert words in text, text


def test_a_killed_rank_gives_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill = "        count = self._count(batches)\n"
    killed = (
        "        import os, signal, torch.distributed as dist\n"
        "        self.steps_taken = getattr(self, 'steps_taken', 0) + 1\n"
        "        if dist.get_rank() == 2 and self.steps_taken == 2:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    mutant = Mutant("a killed rank", "train_step.py", kill, killed + kill, Case("odd", "tp=2 dp=1x2 mb=1"), ())
    certificate = prove_mutant(mutant, tmp_path, monkeypatch, steps=3, timeout_s=30.0)
    assert not certificate.passed
    first = certificate.failures[0]
    assert (first["rank"], first["kind"]) == (2, "signal")
    assert "SIGKILL" in first["message"]
    reached = [mismatch for mismatch in certificate.mismatches if mismatch.rank == 2]
    assert [(m.kind, m.step, m.module) for m in reached] == [("unfinished", 1, "token_count")]
    assert {mismatch.kind for mismatch in certificate.mismatches} == {"unfinished"}
    assert "rank 2 of 4 failed first" in certificate.text()
    assert "Traceback" not in certificate.text()


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Recording]:
    folder = tmp_path_factory.mktemp("recording")
    assert prove(replace(question_of(TP), folder=folder)).passed
    return read_recordings(folder)


def _drop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "leave", lambda w, name, width="D": None)


def _halve(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Writer.collective

    def halved(self, phase, name, op, axis, ranks, payload_bytes, *rest, **more):  # type: ignore[no-untyped-def]
        true(self, phase, name, op, axis, ranks, payload_bytes // 2 if name == "loss" else payload_bytes, *rest, **more)

    monkeypatch.setattr(Writer, "collective", halved)


def _double(monkeypatch: pytest.MonkeyPatch) -> None:
    true = head._statistics
    monkeypatch.setattr(head, "_statistics", lambda w, T: (true(w, T), true(w, T)))


def _invent(monkeypatch: pytest.MonkeyPatch) -> None:
    true = attention_core.forward

    def forward(w, window):  # type: ignore[no-untyped-def]
        true(w, window)
        pairs.leave(w, "attention.core")

    monkeypatch.setattr(attention_core, "forward", forward)


@pytest.mark.parametrize(
    ("mutate", "kind", "module"),
    [
        (_drop, "extra", "layers.0.attention.out"),
        (_halve, "bytes", "loss"),
        (_double, "missing", "loss"),
        (_invent, "missing", "layers.0.attention.core"),
    ],
    ids=["a dropped row", "a halved payload", "a doubled row", "a row too many"],
)
def test_a_fault_of_the_ledger_fails_the_proof_and_is_named(mutate, kind, module, recordings, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    question = question_of(TP)
    scaled = scale(question.model, question.workload, question.layout, question.ranks)

    def compared() -> list[tuple[str, str]]:
        ledger = ledger_of(question, scaled)
        expected = {rank: expected_events(ledger, rank, question.steps) for rank in range(4)}
        return [(m.kind, m.module) for m in compare_traffic(expected, recordings).mismatches]

    assert compared() == []
    mutate(monkeypatch)
    assert (kind, module) in compared()
