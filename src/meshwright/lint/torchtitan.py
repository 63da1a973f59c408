"""torchtitan's job file (TOML), or the same keys on its command line (``--parallelism.tensor_parallel_degree 8``).

Keys as of torchtitan b5bcd76c (August 2026), torchtitan/config/job_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.lint.models import named_model
from meshwright.lint.setup import Setup, whole

__all__ = ["is_config", "setup_of"]

WORDS = {
    "tp": "parallelism.tensor_parallel_degree", "pp": "parallelism.pipeline_parallel_degree", "cp": "parallelism.context_parallel_degree",
    "ep": "parallelism.expert_parallel_degree", "etp": "parallelism.expert_tensor_parallel_degree",
    "dp_shard": "parallelism.data_parallel_shard_degree", "batch": "training.global_batch_size", "mb": "training.local_batch_size",
    "seq": "training.seq_len",
}  # fmt: skip

REMEDIES = {
    "few-micro-batches": "a larger `training.local_batch_size` with a small `parallelism.pipeline_parallel_microbatch_size`",
    "tp-across-nodes": "a smaller `parallelism.tensor_parallel_degree`, and `pipeline_parallel_degree` across nodes",
    "zero3-gathers": '`parallelism.fsdp_reshard_after_forward = "never"` gathers once per step, for memory',
}

SCHEDULES = {
    "1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved", "zbvzerobubble": "zb-v", "dualpipev": "dualpipe-v",
    "interleavedzerobubble": "interleaved", "loopedbfs": "interleaved",
}  # fmt: skip


def is_config(values: Mapping[str, Any]) -> bool:
    return isinstance(values.get("parallelism"), dict) or (
        isinstance(values.get("training"), dict) and isinstance(values.get("model"), dict)
    )


def setup_of(values: Mapping[str, Any], gpus: int | None = None, gpus_per_node: int | None = None) -> Setup:
    """The setup of a job file's tables."""
    parallel, training, model, memory = (
        found if isinstance(found := values.get(key), dict) else {} for key in ("parallelism", "training", "model", "activation_checkpoint")
    )
    replicate, shard = _degree(parallel, "data_parallel_replicate_degree", 1), parallel.get("data_parallel_shard_degree", -1)
    local = _degree(training, "local_batch_size", _degree(training, "batch_size", 8))
    pp = _degree(parallel, "pipeline_parallel_degree", 1)
    tp = _degree(parallel, "tensor_parallel_degree", 1)
    degrees: dict[str, object] = {
        "tp": tp, "sp": tp > 1, "pp": pp, "cp": _degree(parallel, "context_parallel_degree", 1),
        "ep": _degree(parallel, "expert_parallel_degree", 1), "dp_replicate": replicate,
        "mb": min(_degree(parallel, "pipeline_parallel_microbatch_size", 1), local) if pp > 1 else local,
        # A pipeline stage turns resharding off until its last micro-batch: torch/distributed/pipelining/stage.py.
        "zero": 3, "zero_variant": "keep" if pp > 1 or parallel.get("fsdp_reshard_after_forward") == "never" else "",
    }  # fmt: skip
    if isinstance(shard, int) and not isinstance(shard, bool) and shard > 0:
        degrees["dp_shard"] = shard
        if shard == 1 and degrees["cp"] == 1:
            degrees |= {"zero": 0, "zero_variant": ""}  # nothing is sharded then
    degrees |= _schedule(parallel, pp)
    known_model = _model(model)
    chunks = pp * int(str(degrees.get("virtual_stages", 1)))
    recompute, said = _recompute(memory, known_model.num_layers // chunks if known_model else None)
    degrees |= recompute
    batch = training.get("global_batch_size", -1)
    known = isinstance(batch, int) and batch > 0
    return Setup(
        framework="torchtitan", degrees=degrees, model=known_model, seq=_degree(training, "seq_len", 2048),
        batch=batch if known else None, gpus=gpus, gpus_per_node=gpus_per_node, words=WORDS, remedies=REMEDIES,
        assumed=(*said, *(() if known else (f"the global batch is local_batch_size = {local} sequences of each data-parallel rank",))),
    )  # fmt: skip


def _recompute(table: Mapping[str, Any], layers: int | None) -> tuple[dict[str, object], tuple[str, ...]]:
    """What is recomputed, and what had to be said otherwise. layers: of one pipeline stage.

    torchtitan/distributed/activation_checkpoint.py: with ``selective_ac_option = "2"`` every second layer of a stage is checkpointed
    whole, with "op" all layers but the outputs of attention, of every second product and of reduce_scatter.
    """
    if table.get("mode") == "full":
        return {"recompute": "full"}, ()
    if table.get("mode") != "selective":
        return {}, ()
    option = str(table.get("selective_ac_option", "2"))
    every = whole(option)
    if every is None:
        return {"recompute": "selective"}, (f"`selective_ac_option` = {option} as recompute=selective, the nearest that a layout says",)
    if every == 1:
        return {"recompute": "full"}, ()
    if layers is None:
        return {}, (f"nothing of `selective_ac_option` = {option}: which layers those are depends on the model",)
    count = layers // every
    told = f"`selective_ac_option` = {option} as recompute=full={count}: as many layers of each stage, but its first ones" if count else ""
    return ({"recompute": "full", "recompute_layers": count} if count else {}), ((told,) if told else ())


def _schedule(parallel: Mapping[str, Any], pp: int) -> dict[str, object]:
    if pp <= 1:
        return {}
    schedule = SCHEDULES.get(str(parallel.get("pipeline_parallel_schedule", "Interleaved1F1B")).lower(), "1f1b")
    return {"schedule": schedule, "virtual_stages": 2 if schedule in ("interleaved", "zb-v", "dualpipe-v") else 1}


def _model(model: Mapping[str, Any]) -> Any:
    """``name = "llama3", flavor = "70B"`` is Llama 3.1 70B by sizes."""
    name, flavor = str(model.get("name", "")).lower(), str(model.get("flavor", "")).lower()
    family = {"llama3": "llama-3.1", "deepseek_v3": "deepseek-v3", "qwen3": "qwen3"}.get(name, name)
    return named_model("deepseek-v3" if (name, flavor) == ("deepseek_v3", "671b") else f"{family}-{flavor}") if name else None


def _degree(table: Mapping[str, Any], key: str, default: int) -> int:
    return whole(table.get(key)) or default
