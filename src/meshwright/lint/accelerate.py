"""Accelerate's config (YAML) for FSDP. Keys as ``accelerate config`` writes them (accelerate 1.x, commands/config/config_args.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.lint.setup import Setup, whole

__all__ = ["is_config", "setup_of"]

WORDS = {
    "tp": "parallelism_config_tp_size", "cp": "parallelism_config_cp_size", "dp_shard": "parallelism_config_dp_shard_size",
    "dp_replicate": "parallelism_config_dp_replicate_size", "gpus": "num_processes",
}  # fmt: skip

SHARDED = {"FULL_SHARD": 3, "1": 3, "SHARD_GRAD_OP": 3, "2": 3, "NO_SHARD": 0, "3": 0, "HYBRID_SHARD": 3, "4": 3, "HYBRID_SHARD_ZERO2": 3}
"""Strategies of FSDP1, by name or number; SHARD_GRAD_OP keeps parameters gathered through the step."""


JUDGED = ("fsdp_version", "fsdp_sharding_strategy", "fsdp_reshard_after_forward", "fsdp_activation_checkpointing")
MOST_TOLD = 12


def is_config(values: Mapping[str, Any]) -> bool:
    return "fsdp_config" in values or "parallelism_config" in values or _word(values.get("distributed_type", "")).upper() == "FSDP"


def setup_of(values: Mapping[str, Any]) -> Setup:
    """The setup of a config's keys."""
    fsdp, parallel = (found if isinstance(found := values.get(key), dict) else {} for key in ("fsdp_config", "parallelism_config"))
    gpus, nodes = whole(values.get("num_processes")), whole(values.get("num_machines")) or 1
    strategy = _word(fsdp.get("fsdp_sharding_strategy", "FULL_SHARD"))
    reshard = _word(fsdp.get("fsdp_reshard_after_forward", strategy)).upper()
    keeps = reshard in ("FALSE", "SHARD_GRAD_OP", "2")
    tp = whole(parallel.get("parallelism_config_tp_size")) or 1
    degrees: dict[str, object] = {
        "tp": tp, "cp": whole(parallel.get("parallelism_config_cp_size")) or 1, "zero": SHARDED.get(strategy, 3),
        "zero_variant": "keep" if keeps and SHARDED.get(strategy, 3) == 3 else "",
    }  # fmt: skip
    for key in ("dp_shard", "dp_replicate"):
        if (size := whole(parallel.get(f"parallelism_config_{key}_size"))) is not None:
            degrees[key] = size
    per_node = gpus // nodes if gpus and gpus % nodes == 0 else None
    if gpus and per_node and "HYBRID" in strategy.upper() and nodes > 1:
        degrees |= {"dp_shard": per_node, "dp_replicate": nodes}
    if fsdp.get("fsdp_activation_checkpointing") is True:
        degrees["recompute"] = "full"
    return Setup(
        framework="FSDP (Accelerate)", degrees=degrees, gpus=gpus, gpus_per_node=per_node, words=WORDS,
        not_judged=_not_judged(fsdp),
    )  # fmt: skip


def _not_judged(fsdp: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys of ``fsdp_config`` that are switched on or hold a word (wrapping, prefetching, offloading, how weights are loaded)."""
    told = [f"`{key}`" for key, value in fsdp.items() if isinstance(key, str) and key not in JUDGED and value not in (False, None, "")]
    return (*told[:MOST_TOLD], *((f"{len(told) - MOST_TOLD} more keys of `fsdp_config`",) if len(told) > MOST_TOLD else ()))


def _word(value: object) -> str:
    """A scalar as text; "" for anything else."""
    return str(value) if isinstance(value, str | bool) or (isinstance(value, int) and abs(value) < 1 << 53) else ""
