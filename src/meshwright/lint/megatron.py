"""Megatron-LM's command line (and Megatron-DeepSpeed's, which has the same words).

Options as of Megatron-LM d98e8a64 (August 2026), megatron/training/arguments.py.
"""

from __future__ import annotations

from meshwright.lint.models import MOST_LAYERS, model_of_sizes
from meshwright.lint.setup import Problem, Setup, gpus_of
from meshwright.lint.shell import Options, Script
from meshwright.spec.model import Model

__all__ = ["MARKS", "setup_of"]

MARKS = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size", "use-distributed-optimizer", "num-layers")
"""Options of which a command of this framework has at least two."""

WORDS = {
    "tp": "--tensor-model-parallel-size", "pp": "--pipeline-model-parallel-size", "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size", "etp": "--expert-tensor-parallel-size", "sp": "--sequence-parallel",
    "batch": "--global-batch-size", "mb": "--micro-batch-size", "seq": "--seq-length", "zero": "--use-distributed-optimizer",
    "stages": "--decoder-first-pipeline-num-layers", "recompute": "--recompute-num-layers", "gpus": "--nproc_per_node x --nnodes",
}  # fmt: skip

REMEDIES = {
    "sp-off": "add `--sequence-parallel`",
    "few-micro-batches": "a larger `--global-batch-size`, a smaller `--micro-batch-size`, or `--num-layers-per-virtual-pipeline-stage`",
    "tp-across-nodes": "a smaller `--tensor-model-parallel-size`, and `--pipeline-model-parallel-size` across nodes",
    "kv-copies": "a `--tensor-model-parallel-size` of at most `--num-query-groups`",
    "ep-across-nodes": "a smaller `--expert-model-parallel-size`, or a dispatcher that sends a token once per node (`--moe-enable-deepep`)",
}

CP_KINDS = {"p2p": "zigzag", "a2a": "ulysses", "all_gather": "allgather", "allgather": "allgather"}


def setup_of(script: Script, options: Options) -> Setup:
    """The setup of one command."""
    number = options.number
    tp, pp = number("tensor-model-parallel-size") or 1, number("pipeline-model-parallel-size") or 1
    gpus, per_node = gpus_of(script, options)
    degrees: dict[str, object] = {
        "tp": tp, "pp": pp, "cp": number("context-parallel-size") or 1, "ep": number("expert-model-parallel-size") or 1,
        "sp": options.has("sequence-parallel"), "mb": number("micro-batch-size") or 1, "zero": _zero(options),
    }  # fmt: skip
    if (etp := number("expert-tensor-parallel-size")) is not None:
        degrees["etp"] = etp
    kind = CP_KINDS.get(options.text("cp-comm-type") or "p2p", "zigzag")
    degrees |= {"cp_kind": kind, "ulysses": degrees["cp"] if kind == "ulysses" else 1}
    if options.has("use-tp-pp-dp-mapping"):
        degrees["order"] = "tp-cp-ep-pp-dp"
    degrees |= _stages(options, pp)
    if (recompute := options.text("recompute-granularity")) in ("full", "selective"):
        degrees["recompute"] = recompute
    return Setup(
        framework="Megatron-LM", degrees=degrees, model=_model(options), seq=number("seq-length"), batch=number("global-batch-size"),
        gpus=gpus, gpus_per_node=per_node, words=WORDS, remedies=REMEDIES, problems=tuple(_problems(script, options, tp)),
    )  # fmt: skip


def _zero(options: Options) -> int:
    sharded = options.text("data-parallel-sharding-strategy")
    if options.has("use-torch-fsdp2") or (options.has("use-megatron-fsdp", "use-custom-fsdp") and sharded == "optim_grads_params"):
        return 3
    if options.has("use-megatron-fsdp", "use-custom-fsdp") and sharded == "optim_grads":
        return 2
    return 1 if options.has("use-distributed-optimizer") else 0


def _stages(options: Options, pp: int) -> dict[str, object]:
    """Virtual stages and uneven first and last stages."""
    layers = options.number("num-layers")
    if (virtual := options.number("num-virtual-stages-per-pipeline-rank")) and virtual > 1:
        return {"schedule": "interleaved", "virtual_stages": virtual}
    per_chunk = options.number("num-layers-per-virtual-pipeline-stage")
    if per_chunk and layers and layers // pp > per_chunk:
        return {"schedule": "interleaved", "virtual_stages": max(layers // pp // per_chunk, 1)}
    first, last = options.number("decoder-first-pipeline-num-layers"), options.number("decoder-last-pipeline-num-layers")
    if layers and layers <= MOST_LAYERS and (first or last) and pp > 2:
        rest = layers - (first or 0) - (last or 0)
        middle = pp - bool(first) - bool(last)
        if rest > 0 and rest % middle == 0:
            return {"stages": tuple([first] * bool(first) + [rest // middle] * middle + [last] * bool(last))}
    return {}


def _model(options: Options) -> Model | None:
    layers, hidden, heads = (options.number(name) for name in ("num-layers", "hidden-size", "num-attention-heads"))
    if not (layers and hidden and heads) or layers > MOST_LAYERS:
        return None
    groups = options.number("num-query-groups") if options.has("group-query-attention") else None
    ffn = options.number("ffn-hidden-size")
    return model_of_sizes(
        layers, hidden, heads, groups, ffn, options.number("vocab-size"), options.number("max-position-embeddings"),
        options.number("num-experts"), options.number("moe-router-topk"), options.number("moe-ffn-hidden-size") or ffn,
        gated=options.has("swiglu"),
    )  # fmt: skip


def _problems(script: Script, options: Options, tp: int) -> list[Problem]:
    found = []
    connections = script.variables.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if tp > 1 and connections != "1" and not options.has("use-torch-fsdp2", "use-megatron-fsdp"):
        said = "is not set" if connections is None else f"is {connections}"
        found.append(
            Problem(
                code="max-connections", title=f"CUDA_DEVICE_MAX_CONNECTIONS {said}: communication may not overlap with compute",
                remedy="`export CUDA_DEVICE_MAX_CONNECTIONS=1` on GPUs before Blackwell: kernels then start in the order of their launch",
            )
        )  # fmt: skip
    if options.has("tp-comm-overlap") and not options.has("sequence-parallel"):
        found.append(
            Problem(
                code="tp-overlap-without-sp", title="`--tp-comm-overlap` needs `--sequence-parallel`, which is not there",
                remedy="add `--sequence-parallel`: it is its gathers and scatters that are split and overlapped",
            )
        )  # fmt: skip
    if options.has("use-distributed-optimizer") and not options.has("overlap-grad-reduce"):
        found.append(
            Problem(
                code="gradients-not-overlapped", title="Gradients are reduced after the backward, not beside it",
                remedy="add `--overlap-grad-reduce` and `--overlap-param-gather`",
            )
        )  # fmt: skip
    return found
