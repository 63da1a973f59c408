"""The layout of a published run: its degrees as printed, and the words of its framework for ZeRO, schedules and recomputation."""

from __future__ import annotations

import re

from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.validate.runs import Run, Unjudgeable
from meshwright.validate.stages_of_run import stages_of_run

SCHEDULES = (
    (r"2p|h2", "zb-2p"), (r"zb-?v|zero.?bubble-?v", "zb-v"), (r"zero.?bubble|zb", "zb-1p"), (r"dualpipe-?v", "dualpipe-v"),
    (r"dualpipe", "dualpipe"), (r"non-?interleaved|pipedream|dapple|^none$", "1f1b"), (r"interleav|vpp|virtual", "interleaved"),
    (r"gpipe|afab|all-forward", "gpipe"), (r"1f1b", "1f1b"),
)  # fmt: skip
"""What a row's schedule is called, most special first."""

ASSUMED_CHUNKS = 2
"""Chunks of a rank where a row says that it interleaves and not how deep."""

VOCAB_PAD = 128
"""Megatron-LM's --make-vocab-size-divisible-by."""

NODE = 8
"""GPUs of a node where a row does not print them."""

MOST_ASSUMED_MB = 4
"""Sequences in a micro-batch where a row without a pipeline does not print them."""


def layout_of(run: Run, model: Model) -> tuple[Layout, list[str]]:
    """The layout, and what was assumed of it.

    Raises:
        Unjudgeable: a degree is missing and the others do not tell it, or they do not multiply out to the GPUs.
    """
    assumed: list[str] = []
    tp, cp, pp, gpus = (run.whole(key, 1) for key in ("tp", "cp", "pp", "gpus"))
    dp, rest = run.whole("dp", max(1, gpus // (tp * cp * pp))), tp * cp * pp
    if dp * rest != gpus:
        raise Unjudgeable(f"tp {tp} x cp {cp} x pp {pp} x dp {dp} are not {gpus} GPUs")
    schedule, chunks = _schedule(run, pp, assumed)
    sp = _sp(run, tp, cp, assumed)
    mb = micro_batch(run, dp, pp, assumed)
    zero, variant = _zero(run, dp * cp, assumed)
    replicas = _replicas(run, dp, tp * cp)
    recompute, limit = _recompute(run, assumed)
    kind = _cp_kind(run) if cp > 1 else "zigzag"
    layout = Layout(
        tp=tp, sp=sp, cp=cp, cp_kind=kind, ulysses=cp if kind == "ulysses" else 1, pp=pp, schedule=schedule,
        virtual_stages=chunks, stages=stages_of_run(run, model, pp * chunks), ep=run.whole("ep", 1) if model.moe else 1,
        etp=_expert_tp(run, model, tp, cp, dp // replicas), dp_replicate=replicas, dp_shard=dp // replicas, zero=zero, zero_variant=variant,
        mb=mb, recompute=recompute, recompute_layers=limit, vocab_pad=VOCAB_PAD,
    )  # fmt: skip
    return layout, assumed


def _cp_kind(run: Run) -> str:
    if run.says(r"cp (all-?to-?all|a2a)|ulysses", "impl_notes", "notes"):
        return "ulysses"
    gathers = run.says(r"cp all-?gather", "impl_notes", "notes") or run.says(r"2407\.21783|llama 3 (report|herd)", "source")
    return "allgather" if gathers else "zigzag"


def _schedule(run: Run, pp: int, assumed: list[str]) -> tuple[str, int]:
    if pp == 1:
        return "1f1b", 1
    said = run.text("schedule") or ("interleaved" if run.whole("vpp", 1) > 1 else "1f1b")
    schedule = next((ours for pattern, ours in SCHEDULES if re.search(pattern, said, re.IGNORECASE)), None)
    if schedule is None:
        raise Unjudgeable(f"schedule {said} is not known")
    if schedule != "interleaved":
        return schedule, 1
    chunks = run.whole("vpp", ASSUMED_CHUNKS)
    if not run.has("vpp"):
        assumed.append(f"{ASSUMED_CHUNKS} chunks a rank")
    return (schedule, chunks) if chunks > 1 else ("1f1b", 1)


def _sp(run: Run, tp: int, cp: int, assumed: list[str]) -> bool:
    if tp == 1:
        return False
    said = run.text("sp")
    if said:
        return said not in ("0", "False", "false", "no")
    recent = run.whole("year", 2023) >= 2023
    assumed.append(f"sequence parallelism {'on' if recent else 'off'}")
    return recent and run.whole("seq_len", 1) % (tp * cp) == 0


def micro_batch(run: Run, dp: int, pp: int, assumed: list[str]) -> int:
    """Sequences of a micro-batch. Without a pipeline an unprinted one is what a replica gets, up to MOST_ASSUMED_MB; with one it is 1, but
    torchtitan of 2024 cuts a batch into as many as there are stages (pipelining_utils.py: n_microbatches = pipeline_parallel_degree)."""
    if run.has("micro_batch"):
        return run.whole("micro_batch")
    share = run.whole("global_batch") // dp
    if pp > 1:
        by_stages = run.says("torchtitan", "source") and run.whole("year", 2025) <= 2024 and share % pp == 0
        found = max(1, share // pp) if by_stages else 1
    else:
        found = max(size for size in range(1, MOST_ASSUMED_MB + 1) if share % size == 0 or size == 1)
    assumed.append(f"{found} sequences in a micro-batch")
    return found


def _zero(run: Run, ranks: int, assumed: list[str]) -> tuple[int, str]:
    said = run.text("zero_stage_or_fsdp")
    if re.search(r"FSDP ?= ?0|distributed optimizer", said, re.IGNORECASE):
        return (1, "") if ranks > 1 else (0, "")
    if re.search(r"SHARD_GRAD_OP", said, re.IGNORECASE):
        return 3, "keep"  # it gathers once and frees after the backward
    stage = re.search(r"^(?:.*(?:ZeRO|stage)[- _=]*(?:stage)?[- _=]*)?([0-3])\b", said, re.IGNORECASE)
    if stage:
        return (int(stage[1]) if ranks > 1 else 0), ""
    if re.search(r"FSDP|HSDP|FULL_SHARD|HYBRID|fully_shard|ZeRO ?-?(?:infinity|\+\+)", said, re.IGNORECASE):
        return 3, ""
    if not said and ranks > 1:
        recent = run.whole("year", 2023) >= 2023
        assumed.append(f"zero={int(recent)}")
        return int(recent), ""
    return 0, ""


def _replicas(run: Run, dp: int, inner: int) -> int:
    """Replicas of a shard group: ``FSDP2(8)`` and ``ZeRO-1(8)`` print the group's size; hybrid sharding without one shards inside the node
    (torch's HYBRID_SHARD), of which ``inner`` ranks are of other axes."""
    said = run.text("zero_stage_or_fsdp")
    group = re.search(r"\((\d+)\)", said)
    if group is not None:
        size = int(group[1])
    elif re.search(r"HSDP|HYBRID", said, re.IGNORECASE):
        size = run.whole("gpus_per_node", NODE) // inner
    else:
        return 1
    return dp // size if 0 < size < dp and dp % size == 0 else 1


def _recompute(run: Run, assumed: list[str]) -> tuple[str, int | None]:
    said = run.text("recompute")
    if not said:
        said = "selective" if run.says("torchtitan", "source") else "none"
        assumed.append("selective recomputation, torchtitan's default" if said == "selective" else "no recomputation")
    if re.search(r"^(no|none|off|false|0)\b|^$", said, re.IGNORECASE):
        return "none", None
    part = re.search(r"(\d+) ?layers?|block[^0-9]*(\d+)|full[ =(]*(\d+)", said, re.IGNORECASE)
    if part:
        return "full", int(next(group for group in part.groups() if group))
    if re.search(r"select|core|attn|attention|moe|act|norm|module", said, re.IGNORECASE) and not re.search(r"full", said, re.IGNORECASE):
        return "selective", None
    return "full", None


def _expert_tp(run: Run, model: Model, tp: int, cp: int, shards: int) -> int:
    """Megatron's rule is tp; but where tp and ep do not fit into the fold, experts are not cut by tp."""
    if model.moe is None:
        return tp
    if run.has("etp"):
        return run.whole("etp")
    ep, fold = run.whole("ep", 1), shards * cp * tp
    # every model card of the Megatron MoE recipes of 2025 on says etp=1; without ep, tp is all that cuts experts
    return 1 if (ep > 1 and run.whole("year", 2025) >= 2024) or fold % (ep * tp) else tp
