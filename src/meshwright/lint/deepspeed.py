"""DeepSpeed's JSON config. Keys as of DeepSpeed edaa7221 (August 2026), deepspeed/runtime/config.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.lint.setup import Problem, Setup, whole

__all__ = ["is_config", "setup_of"]

KEYS = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")

WORDS = {
    "batch": "train_batch_size", "mb": "train_micro_batch_size_per_gpu", "zero": "zero_optimization.stage", "gpus": "GPUs",
    "tp": "tensor_parallel.autotp_size", "cp": "sequence_parallel_size",
}  # fmt: skip

REMEDIES = {
    "zero3-gathers": "stage 1 or 2 if it fits, or hpZ (`zero_hpz_partition_size` = GPUs per node), which gathers inside the node",
    "zero2-pp": '`"stage": 1` with pipelines',
}


NOT_JUDGED = (
    "offload_optimizer", "offload_param", "zero_hpz_partition_size", "mics_shard_size", "zero_quantized_weights",
    "zero_quantized_gradients", "zero_quantized_nontrainable_weights",
)  # fmt: skip
"""Keys of ``zero_optimization`` that move state, or change what is sent (deepspeed/runtime/zero/config.py)."""


def is_config(values: Mapping[str, Any]) -> bool:
    return any(key in values for key in KEYS[:2]) or sum(key in values for key in KEYS) >= 2


def setup_of(values: Mapping[str, Any], gpus: int | None = None, gpus_per_node: int | None = None) -> Setup:
    """The setup of a config's keys; "auto", which the trainer fills in, counts as not said."""
    zero = values.get("zero_optimization")
    stage = whole(zero.get("stage")) if isinstance(zero, dict) else 0
    tensor = values.get("tensor_parallel")
    tp = whole(tensor.get("autotp_size")) or 1 if isinstance(tensor, dict) else 1
    micro, batch, steps = (
        whole(values.get(key)) for key in ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")
    )
    sequence = whole(values.get("sequence_parallel_size")) or 1
    degrees: dict[str, object] = {"tp": tp, "mb": micro or 1, "zero": min(stage or 0, 3)}
    if sequence > 1:
        degrees |= {"cp": sequence, "cp_kind": "ulysses", "ulysses": sequence}
    problems = _arithmetic(micro, batch, steps, gpus // (tp * sequence) if gpus else None)
    return Setup(
        framework="DeepSpeed", degrees=degrees, batch=None if problems else batch, gpus=gpus, gpus_per_node=gpus_per_node,
        words=WORDS, remedies=REMEDIES, problems=(*problems, *_two_precisions(values)),
        not_judged=tuple(_not_judged(zero)) if isinstance(zero, dict) else (),
    )  # fmt: skip


def _not_judged(zero: Mapping[str, Any]) -> Iterator[str]:
    for key in NOT_JUDGED:
        value = zero.get(key)
        device = value.get("device", "none") if isinstance(value, dict) else ""
        if device not in ("", "none") or value is True or (whole(value) or 1) > 1:
            yield f"`zero_optimization.{key}`" + (f" (to {device})" if device in ("cpu", "nvme") else "")


def _arithmetic(micro: int | None, batch: int | None, steps: int | None, ranks: int | None) -> tuple[Problem, ...]:
    """DeepSpeed's own check: the batch is micro-batch x accumulation x data-parallel ranks."""
    if not (micro and batch and steps):
        return ()
    right = micro * steps * (ranks or 1)
    if (batch == right) if ranks else (batch % right == 0):
        return ()
    parts = f"micro-batch {micro} x accumulation {steps}" + (f" x {ranks} data-parallel ranks = {right}" if ranks else "")
    title = f"`train_batch_size` = {batch} is {'not' if ranks else 'no multiple of'} {parts}"
    return (Problem(code="batch", title=title, remedy="leave one of the three out: DeepSpeed works it out from the others"),)


def _two_precisions(values: Mapping[str, Any]) -> tuple[Problem, ...]:
    """DeepSpeedConfig asserts that at most one is on (deepspeed/runtime/config.py); ``bfloat16`` is its older word."""
    on = [key for key in ("fp16", "bf16", "bfloat16") if isinstance(table := values.get(key), dict) and table.get("enabled") is True]
    if "fp16" not in on or len(on) < 2:
        return ()
    title = f"`fp16.enabled` and `{on[1]}.enabled` are both true, which DeepSpeed refuses"
    return (Problem(code="two-precisions", title=title, remedy=f"leave `{on[1]}` on alone; `fp16` is for devices without bf16"),)
