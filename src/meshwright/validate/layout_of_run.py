"""The layout of a published run: its degrees as printed, and the words of its framework for ZeRO, schedules and recomputation."""

from __future__ import annotations

import re

from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.validate.runs import Run, Unjudgeable

SCHEDULES = (
    (r"2p|h2", "zb-2p"), (r"zero.?bubble|zb", "zb-1p"), (r"dualpipe", "dualpipe"), (r"interleaved|vpp", "interleaved"),
    (r"gpipe|afab", "gpipe"), (r"1f1b", "1f1b"),
)  # fmt: skip
"""What a row's schedule is called, most special first."""

ASSUMED_CHUNKS = 2
"""Chunks of a rank where a row says that it interleaves and not how deep."""

VOCAB_PAD = 128
"""Megatron-LM's --make-vocab-size-divisible-by."""

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
    replicas = _replicas(run, dp, cp)
    recompute, limit = _recompute(run, assumed)
    kind = _cp_kind(run) if cp > 1 else "zigzag"
    layout = Layout(
        tp=tp, sp=sp, cp=cp, cp_kind=kind, ulysses=cp if kind == "ulysses" else 1, pp=pp, schedule=schedule,
        virtual_stages=chunks, stages=stages_of(len(model.layers), pp * chunks), ep=run.whole("ep", 1) if model.moe else 1,
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


def stages_of(layers: int, chunks: int) -> tuple[int, ...] | None:
    """Layers of each chunk: even if they divide; else as even as they go with embedding and head counted as a layer each, which is
    how Megatron-core (--account-for-embedding-in-pipeline-split) and Llama 3 (arXiv 2407.21783, section 3.3.2) balance stages."""
    if layers % chunks == 0 or chunks == 1:
        return None
    most, heavy = divmod(layers + 2, chunks)
    sizes = [most] * chunks
    for index in range(heavy):  # the rest goes to chunks away from the ends
        sizes[(1 + index) % chunks] += 1
    sizes[0] -= 1
    sizes[-1] -= 1
    return tuple(max(size, 0) for size in sizes) if sum(max(size, 0) for size in sizes) == layers else None


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
    """Sequences of a micro-batch; without a pipeline an unprinted one is what a replica gets, up to MOST_ASSUMED_MB."""
    if run.has("micro_batch"):
        return run.whole("micro_batch")
    share = run.whole("global_batch") // dp
    found = 1 if pp > 1 else max(size for size in range(1, MOST_ASSUMED_MB + 1) if share % size == 0 or size == 1)
    assumed.append(f"{found} sequences in a micro-batch")
    return found


def _zero(run: Run, ranks: int, assumed: list[str]) -> tuple[int, str]:
    said = run.text("zero_stage_or_fsdp")
    if re.search(r"FSDP ?= ?0|distributed optimizer", said, re.IGNORECASE):
        return (1, "") if ranks > 1 else (0, "")
    if re.search(r"SHARD_GRAD_OP|ZeRO-?2", said, re.IGNORECASE):
        # torch's SHARD_GRAD_OP gathers once and frees after the backward: zero=3:keep.
        return (3, "keep") if "SHARD" in said else (2, "")
    if re.search(r"FSDP|HSDP|FULL_SHARD|HYBRID|fully_shard|ZeRO-?3", said, re.IGNORECASE):
        return 3, ""
    stage = re.search(r"ZeRO-?(\d)", said, re.IGNORECASE)
    if stage:
        return int(stage[1]), ""
    if not said and ranks > 1:
        recent = run.whole("year", 2023) >= 2023
        assumed.append(f"zero={int(recent)}")
        return int(recent), ""
    return 0, ""


def _replicas(run: Run, dp: int, cp: int) -> int:
    """Replicas of a shard group: ``FSDP2(8)`` and ``ZeRO-1(8)`` print the group's size."""
    group = re.search(r"\((\d+)\)", run.text("zero_stage_or_fsdp"))
    if group is None:
        return 1
    size = int(group[1])
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
