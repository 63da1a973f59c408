"""A row as the inputs of an estimate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.errors import InputError
from meshwright.spec.cluster import Cluster
from meshwright.spec.layout import Layout, parse_layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.load_model import resolve_model
from meshwright.spec.model import Model
from meshwright.spec.rules import check
from meshwright.spec.stack import DEFAULT_STACK, STACKS, Stack
from meshwright.spec.workload import LARGEST_BATCH, PRECISIONS, Training
from meshwright.validate.cluster_of_run import cluster_of
from meshwright.validate.layout_of_run import layout_of
from meshwright.validate.measured import Figure, figures, ran_out_of_memory
from meshwright.validate.model_of_run import model_of
from meshwright.validate.runs import Run, Unjudgeable
from meshwright.validate.stack_of_run import stack_of


@dataclass(frozen=True, kw_only=True)
class Question:
    """One run: what is asked of the estimate, and what was measured.

    Attributes:
        assumed: what the row does not say. complete: it says every degree, the micro-batch and a time.
        out_of_memory: the run did not fit.
    """

    run: Run
    model: Model
    cluster: Cluster
    workload: Training
    layout: Layout
    stack: Stack
    figures: tuple[Figure, ...]
    assumed: tuple[str, ...]
    complete: bool
    out_of_memory: bool = False

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def says_recompute(self) -> bool:
        """Whether the row says what is recomputed; a layout of the user's own always does."""
        return not self.run.published or self.run.has("recompute")

    @property
    def dense(self) -> bool:
        return self.model.moe is None

    @property
    def time(self) -> Figure | None:
        return next((figure for figure in self.figures if figure.metric != "memory_bytes"), None)

    @property
    def memory(self) -> Figure | None:
        return next((figure for figure in self.figures if figure.metric == "memory_bytes"), None)


def question_of(run: Run) -> Question:
    """Everything that an estimate needs.

    Raises:
        Unjudgeable: the row lacks something, or cannot have run as it says.
    """
    try:
        return _published(run) if run.published else _own(run)
    except InputError as error:
        first = error.mistakes[0]
        where = f"{first.key or first.file}{'' if first.value is None else f' = {first.value}'}"
        raise Unjudgeable(f"{where} {first.problem or 'is not legal'}".replace("\n", " ")[:200]) from None


def _published(run: Run) -> Question:
    if run.text("kind") != "train":
        raise Unjudgeable(f"kind {run.text('kind') or 'not given'}: only training is estimated")
    if run.says(r"\blora\b|peft|frozen", "model", "impl_notes", "notes", "source", "metric_name"):
        raise Unjudgeable("LoRA: frozen weights need no gradient, which is not modelled")
    if run.says(r"forward|layer", "metric_name"):
        raise Unjudgeable("the time of a single layer, not of a step")
    found = tuple(figures(run))
    model, of_model = model_of(run)
    cluster, of_cluster = cluster_of(run)
    stack, of_stack = stack_of(run, model)
    layout, of_layout = layout_of(run, model)
    if layout.zero == 3 and layout.pp > 1 and not layout.zero_variant:
        # Llama 3 (arXiv 2407.21783, section 3.3.2) and torchtitan's reshard_after_forward "default": parameters stay gathered.
        layout = replace(layout, zero_variant="keep")
    precision = _precision(run, layout, stack)
    workload = Training(seq=run.whole("seq_len"), batch=_batch(run, "global_batch"), precision=precision)
    if layout.sp and model.vocab_size and workload.seq % (layout.tp * layout.cp):
        layout = replace(layout, sp=False)
    check(model, workload, layout, cluster, layout.world_size)
    _check_units(cluster, precision)
    known = ("gpus", "tp", "pp", "dp", "micro_batch", "global_batch", "seq_len")
    time = next((figure for figure in found if figure.metric != "memory_bytes"), None)
    complete = time is not None and time.step_s is not None and all(map(run.has, known))
    assumed = (*of_model, *of_cluster, *of_stack, *of_layout)
    return Question(
        run=run,
        model=model,
        cluster=cluster,
        workload=workload,
        layout=layout,
        stack=stack,
        figures=found,
        assumed=assumed,
        complete=complete,
        out_of_memory=ran_out_of_memory(run),
    )


def _check_units(cluster: Cluster, precision: str) -> None:
    """The products' unit, and a 16-bit one, which attention needs."""
    device, compute = cluster.device, PRECISIONS[precision].compute
    half = device.peak("bf16") or device.peak("float16")
    if half is None or (device.peak(compute) is None and compute != "bf16"):
        raise Unjudgeable(f"{device.name} has no {compute} unit")


def _precision(run: Run, layout: Layout, stack: Stack) -> str:
    """The recipe by the row's dtype, the framework's habit and the ZeRO stage."""
    text = run.text("precision").lower() or "bf16"
    if "fp4" in text:
        raise Unjudgeable(f"precision {text} is not modelled")
    if "fp8" in text:
        return "fsdp-fp8" if layout.zero == 3 else "fp8"
    if layout.zero == 3:
        return "fsdp"
    if text.startswith("fp16"):
        return "fp16"
    if text.startswith("fp32"):
        return "float32"
    return "bf16-fp32grad"


def _batch(run: Run, column: str) -> int:
    """Sequences of a step, not tokens: a pipeline of so many micro-batches would be simulated."""
    batch = run.whole(column)
    if batch > LARGEST_BATCH:
        raise Unjudgeable(f"{column} = {batch} is more than {LARGEST_BATCH:,} sequences")
    return batch


def _own(run: Run) -> Question:
    found = tuple(figures(run))
    model, cluster = resolve_model(run.text("model")), resolve_cluster(run.text("cluster"))
    gpus = run.whole("gpus") if run.has("gpus") else None
    layout = parse_layout(run.text("layout"), gpus)
    precision, name = run.text("precision") or None, run.text("stack") or DEFAULT_STACK
    if precision is not None and precision not in PRECISIONS:
        raise Unjudgeable(f"precision {precision} is none of {', '.join(PRECISIONS)}")
    if name not in STACKS:
        raise Unjudgeable(f"stack {name} is none of {', '.join(STACKS)}")
    workload = Training(seq=run.whole("seq"), batch=_batch(run, "batch"), precision=precision)
    check(model, workload, layout, cluster, gpus)
    _check_units(cluster, precision or "bf16")
    return Question(
        run=run, model=model, cluster=cluster, workload=workload, layout=layout, stack=STACKS[name], figures=found, assumed=model.assumed,
        complete=any(figure.metric != "memory_bytes" for figure in found),
    )  # fmt: skip
