"""Which layouts a plan lists: of some that are the same in all but name one; and why one that is not listed is faster."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

from meshwright import estimate, plan

JOB = {"cluster": "h100-sxm", "gpus": 16, "seq": 4096, "batch": 64}
WORDS = ("--cluster", "h100-sxm", "--gpus", "16", "--seq", "4096", "--batch", "64")


def test_striped_and_zigzag_are_listed_once() -> None:
    """They are priced alike, and more frameworks have zigzag; who asks for striped gets it."""
    zigzag, striped = (
        estimate("llama-2-7b", layout=f"cp=2:{kind} dp=1x8 zero=1 mb=1", **JOB)  # type: ignore[arg-type]
        for kind in ("zigzag", "striped")
    )
    assert (zigzag.step_s, zigzag.memory_bytes) == (striped.step_s, striped.memory_bytes)
    found = plan("llama-2-7b", constraints=["cp=2,pp=1,tp=1,cp_kind!=ulysses"], top=8, **JOB)  # type: ignore[arg-type]
    kinds = [ranked.layout.cp_kind for ranked in found.plans]
    assert "striped" not in kinds and "zigzag" in kinds
    assert "striped" not in {ranked.layout.cp_kind for ranked in found.best_by_stack.values()}
    asked = plan("llama-2-7b", constraints=["cp=2,pp=1,tp=1,cp_kind=striped"], top=2, **JOB)  # type: ignore[arg-type]
    assert {ranked.layout.cp_kind for ranked in asked.plans} == {"striped"}
    assert asked.plans[0].step_s == min(ranked.step_s for ranked in found.plans if ranked.layout.cp_kind == "zigzag")


def test_a_sequence_that_zigzag_cannot_cut_is_planned_striped() -> None:
    """Zigzag cuts it into 2 cp chunks: 4,098 tokens are no multiple of 4."""
    found = plan("llama-2-7b", constraints=["cp=2,pp=1,tp=1"], top=20, **{**JOB, "seq": 4098})  # type: ignore[arg-type]
    kinds = {ranked.layout.cp_kind for ranked in found.plans}
    assert "striped" in kinds and "zigzag" not in kinds


def test_a_framework_ahead_of_the_first_plan_says_why(meshwright: Callable[..., Result]) -> None:
    asked = ("plan", "llama-2-7b", *WORDS, "--constraint", "pp=4,zero=1,cp=1,tp=1")
    text = " ".join(meshwright(*asked).stdout.split())
    assert "meshwright is ahead of plan 1 with a pipeline (zb-v, zero=1) that no framework for training has" in text
    wanted = meshwright("plan", "llama-2-7b", *WORDS, "--constraint", "pp=4,zero=1,cp=1,tp=1,schedule=zb-v").stdout
    assert "1 pp=4:zb-v" in " ".join(wanted.split()) and "ahead of plan 1" not in wanted
