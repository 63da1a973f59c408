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
    "pp-layers": "layers that the stages divide; `--decoder-first-pipeline-num-layers` and `--decoder-last-pipeline-num-layers` let the "
    "first and the last stage differ",
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
    degrees |= _virtual(options, pp)
    stages, uneven = _uneven(options, pp, int(str(degrees.get("virtual_stages", 1))))
    degrees |= stages
    if (recompute := options.text("recompute-granularity")) in ("full", "selective"):
        degrees["recompute"] = recompute
    return Setup(
        framework="Megatron-LM", degrees=degrees, model=_model(options), seq=number("seq-length"), batch=number("global-batch-size"),
        gpus=gpus, gpus_per_node=per_node, words=WORDS, remedies=REMEDIES, 
        problems=(*_layers_told(options), *(uneven or ([] if stages else _chunks_told(options, pp))), *_problems(script, options, tp)),
    )  # fmt: skip


def _zero(options: Options) -> int:
    sharded = options.text("data-parallel-sharding-strategy")
    if options.has("use-torch-fsdp2") or (options.has("use-megatron-fsdp", "use-custom-fsdp") and sharded == "optim_grads_params"):
        return 3
    if options.has("use-megatron-fsdp", "use-custom-fsdp") and sharded == "optim_grads":
        return 2
    return 1 if options.has("use-distributed-optimizer") else 0


def _virtual(options: Options, pp: int) -> dict[str, object]:
    """Chunks per rank, said directly or by their layers."""
    layers = options.number("num-layers")
    if (virtual := options.number("num-virtual-stages-per-pipeline-rank")) and virtual > 1:
        return {"schedule": "interleaved", "virtual_stages": virtual}
    per_chunk = options.number("num-layers-per-virtual-pipeline-stage")
    if per_chunk and layers and layers // pp > per_chunk:
        return {"schedule": "interleaved", "virtual_stages": max(layers // pp // per_chunk, 1)}
    return {}


def _uneven(options: Options, pp: int, virtual: int) -> tuple[dict[str, object], list[Problem]]:
    """First and last stages of other sizes: each is cut into its chunks, and the other stages share what is left."""
    first, last = (options.number(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    layers, middle = options.number("num-layers"), pp - bool(first) - bool(last)
    if not (first or last) or not layers or layers > MOST_LAYERS or middle < 1:
        return {}, []
    said = " and ".join(f"`--decoder-{end}-pipeline-num-layers` = {n}" for end, n in (("first", first), ("last", last)) if n)
    rest = layers - (first or 0) - (last or 0)
    if rest <= 0 or rest % (middle * virtual) or (first or 0) % virtual or (last or 0) % virtual:
        chunks = f", in {virtual} chunks each" if virtual > 1 else ""
        title = f"{said} of `--num-layers` = {layers} leave {max(rest, 0)} layers, which {middle} other stages cannot share evenly{chunks}"
        return {}, [Problem(code="pp-layers", title=title, remedy=f"numbers that leave a multiple of {middle * virtual}")]
    sizes = [*([first // virtual] if first else []), *[rest // middle // virtual] * middle, *([last // virtual] if last else [])]
    return {"stages": tuple(sizes * virtual)}, []


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


def _layers_told(options: Options) -> list[Problem]:
    """A number of layers that no model has: a slip, and then nothing is known of the model."""
    layers = options.number("num-layers")
    if not layers or layers <= MOST_LAYERS:
        return []
    title = f"`--num-layers` = {layers:,} is more than any model has: nothing of the model is judged"
    return [Problem(code="value", title=title, remedy=f"a number up to {MOST_LAYERS:,}")]


def _chunks_told(options: Options, pp: int) -> list[Problem]:
    """Chunks that the layers do not fill, by the option that asks for them; without one the rule of pipelines says it."""
    layers = options.number("num-layers")
    for name, what in (("num-virtual-stages-per-pipeline-rank", "chunks"), ("num-layers-per-virtual-pipeline-stage", "layers")):
        number = options.number(name)
        if layers and number and number > (what == "chunks") and layers % (pp * number):
            title = f"`--num-layers` = {layers} is no multiple of `--pipeline-model-parallel-size` {pp} x `--{name}` {number}"
            low, high = max(layers // (pp * number), 1) * pp * number, (layers // (pp * number) + 1) * pp * number
            remedy = f"{f'{low} or {high}' if low < high else high} layers, or another `--{name}`"
            return [Problem(code="pp-layers", title=title, remedy=remedy)]
    return []


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
