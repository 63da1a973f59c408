"""Where nothing fits: what the plan says would fit does fit."""

from __future__ import annotations

from meshwright import estimate, plan


def test_more_gpus_that_are_named_do_fit_even_with_one_sequence() -> None:
    """With a batch of one sequence more GPUs can only cut the sequence, the layers or the heads."""
    said = {"cluster": "h100-sxm", "seq": 131_072, "batch": 1}
    answer = plan("qwen3-8b", gpus=1, **said)  # type: ignore[arg-type]
    assert answer.nearest is not None and not answer.plans
    gpus, _, layout = answer.nearest.would_fit[0].partition(" GPUs: ")
    found = estimate("qwen3-8b", gpus=int(gpus), layout=layout, **said)  # type: ignore[arg-type]
    assert found.fits
    fewer = plan("qwen3-8b", gpus=int(gpus) // 2, **said)  # type: ignore[arg-type]
    assert not fewer.plans
