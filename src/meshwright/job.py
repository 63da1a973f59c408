"""All inputs of a command, looked up, read and checked together: one frozen ``Job``, or every mistake of all of them.

The first argument is a saved plan (spec/plan_file.py), whose values may be overridden one by one, or a model with the rest
said beside it. The command line hands over texts, the Python interface may hand over the objects themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import lcm
from pathlib import Path
from typing import Any, TypeVar

from meshwright.errors import InputError, Mistake, did_you_mean
from meshwright.estimate import MEMORY_FRACTION
from meshwright.spec.cluster import Cluster
from meshwright.spec.files import read_toml
from meshwright.spec.layout import Layout, parse_layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.load_model import resolve_model
from meshwright.spec.load_stack import resolve_stack
from meshwright.spec.model import Model
from meshwright.spec.plan_file import Plan, read_plan
from meshwright.spec.rules import LayoutWarning, check
from meshwright.spec.stack import DEFAULT_STACK, STACKS, Stack
from meshwright.spec.used_units import with_used_units
from meshwright.spec.workload import LARGEST_BATCH, PRECISIONS, Training

NEEDS = ("cluster", "workload", "layout")
"""What a command may need beside the model."""

DEFAULT_SEQ = 8192

OF_A_WORKLOAD = {"few-micro-batches", "thin-micro-batch", "zero3-gathers", "zero2-pp"}
"""Warnings that turn on the batch or the sequence: of no use to a command that was told neither and assumes nothing of them."""

DEFAULT_STEP_TOKENS = 4 * 1024 * 1024
"""What large runs use: Llama 3 405B trained at 8,192 tokens and 4M to 16M tokens a step (arXiv 2407.21783, section 3.4.1)."""

LARGEST_COUNT = 10**8
"""No job has more GPUs, tokens in a sequence or sequences in a batch (spec/rules/sizes.py)."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the user said; None where nothing was said.

    Attributes:
        subject: a model or a plan: a name, a path, or the object.
        gpus: of the job. layouts: in the order they were said.
        source: where it was said, for mistakes. dashes: what precedes a key there.
    """

    subject: str | Path | Model | Plan
    cluster: str | Path | Cluster | None = None
    gpus: int | None = None
    layouts: tuple[str | Layout, ...] = ()
    seq: int | None = None
    batch: int | None = None
    precision: str | None = None
    memory_fraction: float | None = None
    stack: str | None = None
    source: str = "command line"
    dashes: str = "--"


@dataclass(frozen=True, kw_only=True)
class Job:
    """The inputs of a command. ``cluster`` and ``workload`` are None, and ``layouts`` empty, only for commands that do not
    need them.

    Attributes:
        warnings: of each layout, what is silly about it.
        gpus: what the user has said, or the cluster has; None where only the layouts say.
        stated_stack: whether the user chose the stack, now or in the plan.
        assumed: what was left out and filled in, of the workload and the model.
    """

    model: Model
    cluster: Cluster | None
    workload: Training | None
    layouts: tuple[Layout, ...] = ()
    warnings: tuple[tuple[LayoutWarning, ...], ...] = ()
    gpus: int | None = None
    stack: Stack = field(default=STACKS[DEFAULT_STACK])
    stated_stack: bool = False
    memory_fraction: float = MEMORY_FRACTION
    assumed: tuple[str, ...] = ()

    @property
    def layout(self) -> Layout:
        """The only layout, or the first."""
        return self.layouts[0]


def resolve(asked: Asked, needs: Sequence[str] = NEEDS) -> Job:
    """Look up and read everything, then check it against the rules.

    Raises:
        InputError: every mistake of every input. The rules are asked once all inputs can be read.
    """
    reader = _Reader(asked, needs)
    job = reader.job()
    if reader.mistakes:
        raise InputError(reader.mistakes)
    assert job is not None
    return job


def _placed(cluster: Cluster, sizes: set[int]) -> tuple[Cluster, list[str]]:
    """The cluster as far as the job takes it, where all layouts have as many ranks; and what was assumed of that."""
    if len(sizes) > 1:
        return cluster, []
    used, said = with_used_units(cluster, *sizes)
    return used, [said] if said else []


class _Reader:
    """Reads the parts one after the other and keeps all mistakes.

    Attributes:
        plan: the plan, if the subject is one. unread: whether the subject is a TOML file that could not be read: then what
            it would have said cannot be called missing.
    """

    def __init__(self, asked: Asked, needs: Sequence[str]) -> None:
        self.asked, self.needs = asked, needs
        self.mistakes: list[Mistake] = []
        self.plan: Plan | None = None
        self.unread = False

    def job(self) -> Job | None:
        self.numbers()
        asked = self.asked
        model = self.tried(self.model)
        cluster = self.tried(self.cluster)
        layouts = self.layouts(cluster)
        gpus = asked.gpus or (cluster.num_gpus if cluster else None)
        workload, assumed = self.workload(model, lcm(*(layout.world_size for layout in layouts)) if layouts else gpus or 1)
        stack, fraction = self.stack(), self.memory_fraction()
        stated = bool(asked.stack or (self.plan and self.plan.stack))
        if self.mistakes or model is None:
            return None
        self.mistakes += device_mistakes(cluster, workload, asked)
        if cluster is not None:
            cluster, placed = _placed(cluster, {layout.world_size for layout in layouts} or {gpus or 1})
            assumed = [*assumed, *placed]
        warnings = []
        for index, layout in enumerate(layouts):
            step = workload or fitting_workload(model, layout)
            name = self.layout_name(index)
            found = self.tried(partial(check, model, step, layout, cluster, asked.gpus, name)) or []
            warnings.append([warning for warning in found if workload or warning.code not in OF_A_WORKLOAD])
        return Job(
            model=model, cluster=cluster, workload=workload, layouts=tuple(layouts),
            warnings=tuple(map(tuple, warnings)), gpus=gpus, stack=stack, stated_stack=stated,
            memory_fraction=fraction, assumed=(*assumed, *model.assumed),
        )  # fmt: skip

    def tried(self, read: Callable[[], T]) -> T | None:
        """What ``read`` returns; its mistakes are kept instead of raised."""
        try:
            return read()
        except InputError as error:
            self.mistakes += error.mistakes
            return None

    def numbers(self) -> None:
        """What Python callers may get wrong and the command line has checked; the rest is read without it."""
        counts = {key: getattr(self.asked, key) for key in ("gpus", "seq", "batch")}
        for key, value in counts.items():
            if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_COUNT):
                self.refuse(key, value, f"a whole number from 1 to {LARGEST_COUNT}")
            elif key == "batch" and value is not None and value > LARGEST_BATCH:
                self.refuse(key, value, f"a whole number from 1 to {LARGEST_BATCH:,}", "sequences, not tokens: 4M tokens of 8,192 are 512")
        for key, legal in (("precision", ", ".join(PRECISIONS)), ("stack", "a name, or calibrate's TOML file")):
            if not isinstance(getattr(self.asked, key), str | None):
                self.refuse(key, repr(getattr(self.asked, key)), legal)
        said = self.asked.memory_fraction
        if said is not None and not (isinstance(said, int | float) and 0 < said <= 1):
            self.refuse("memory_fraction", str(said), "a number above 0 and up to 1, e.g. 0.92")

    def refuse(self, key: str, value: object, legal: str, hint: str = "") -> None:
        """Note a value that cannot be read, and go on as if it had not been said."""
        asked = self.asked
        name = key.replace("_", "-") if asked.dashes else key
        self.mistakes.append(Mistake(asked.source, asked.dashes + name, value, legal, hint))
        without: dict[str, Any] = {key: None}
        self.asked = replace(asked, **without)

    def needed(self, need: str, key: str, legal: str, hint: str = "") -> None:
        """Note that ``key`` was not said, if the command needs it."""
        if need in self.needs and not self.unread:
            asked = self.asked
            self.mistakes.append(Mistake(asked.source, asked.dashes + key, None, legal, hint, "is missing"))

    def model(self) -> Model:
        subject = self.asked.subject
        if isinstance(subject, Model):
            return subject
        if isinstance(subject, Plan):
            self.plan = subject
            return subject.model
        if not str(subject).lower().endswith(".toml"):
            return resolve_model(str(subject))
        self.unread = True
        values = read_toml(Path(subject))
        if not {"format", "layout", "workload"} & set(values):  # a model's own file has none of these
            self.unread = False
            return resolve_model(str(subject))
        self.plan = read_plan(values, str(subject))
        self.unread = False
        return self.plan.model

    def cluster(self) -> Cluster | None:
        said = self.asked.cluster
        if isinstance(said, Cluster):
            return said
        if said is not None:
            return resolve_cluster(str(said))
        if self.plan is not None:
            return self.plan.cluster
        self.needed("cluster", "cluster", "a name of the catalog, or a TOML file", "`meshwright catalog clusters` lists the names")
        return None

    def workload(self, model: Model | None, gpus: int) -> tuple[Training | None, list[str]]:
        """A training step, and what was assumed of it; the plan's values unless others were said."""
        asked, planned = self.asked, self.plan.workload if self.plan else None
        if planned is not None and not isinstance(planned, Training):
            kind = type(planned).__name__.lower()
            self.mistakes.append(Mistake(str(asked.subject), "workload.kind", kind, "training", problem="is not a training step"))
            return None, []
        seq = asked.seq if asked.seq is not None else planned.seq if planned else None
        batch = asked.batch if asked.batch is not None else planned.batch if planned else None
        precision = asked.precision or (planned.precision if planned else None)
        if precision is not None and precision not in PRECISIONS:
            self.wrong("precision", precision, PRECISIONS)
        if seq is not None and batch is not None:
            return Training(seq=seq, batch=batch, precision=precision), []
        return default_workload(model, gpus, seq, batch, precision) if model and "workload" in self.needs else (None, [])

    def stack(self) -> Stack:
        if self.plan and self.plan.calibrated and self.asked.stack is None:
            return self.plan.calibrated
        name = self.asked.stack or (self.plan.stack if self.plan else "") or DEFAULT_STACK
        found = self.tried(partial(resolve_stack, name, f"{self.asked.dashes}stack", self.asked.source))
        return found or STACKS[DEFAULT_STACK]

    def memory_fraction(self) -> float:
        said = self.asked.memory_fraction
        if said is not None:
            return said
        return self.plan.memory_fraction if self.plan else MEMORY_FRACTION

    def layouts(self, cluster: Cluster | None) -> list[Layout]:
        """Those that were said, or the plan's."""
        asked = self.asked
        if not asked.layouts and self.plan is not None:
            return [self.plan.layout]
        if not asked.layouts:
            legal = 'how the model is split, e.g. "tp=8 sp dp=1x8 zero=3 mb=1"'
            self.needed("layout", "layout", legal, "`meshwright plan` finds the best one")
        found = [self.tried(partial(self.layout, said, index, cluster)) for index, said in enumerate(asked.layouts)]
        return [layout for layout in found if layout is not None]

    def layout(self, said: str | Layout, index: int, cluster: Cluster | None) -> Layout:
        """One layout; where it does not say dp, the GPUs decide: those that were said, the plan's, or the cluster's."""
        if isinstance(said, Layout):
            return said
        text, gpus = str(said), self.asked.gpus
        if gpus is None and not any(word.startswith("dp=") for word in text.split()):
            gpus = self.plan.gpus if self.plan else cluster.num_gpus if cluster else None
        return parse_layout(text, gpus, file=self.layout_name(index))

    def layout_name(self, index: int) -> str:
        """What mistakes call the layout: the key, with its number where there are several, or the plan's file."""
        if not self.asked.layouts:
            return str(self.asked.subject) if isinstance(self.asked.subject, str | Path) else "plan"
        return "--layout" if len(self.asked.layouts) == 1 else f"--layout {index + 1}"

    def wrong(self, key: str, value: str, legal: Iterable[str]) -> None:
        names = tuple(legal)
        self.mistakes.append(Mistake(self.asked.source, self.asked.dashes + key, value, ", ".join(names), did_you_mean(value, names)))


def no_whole_numbers(source: str, dashes: str = "", least: int = 1, most: int = LARGEST_COUNT, **said: object) -> list[Mistake]:
    """The mistakes of what a Python caller said for counts, None for what was not said; the command line has checked its own."""
    legal = f"a whole number from {least} to {most}"
    wrong = {
        key: value for key, value in said.items()
        if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most)
    }  # fmt: skip
    return [Mistake(source, dashes + (key.replace("_", "-") if dashes else key), value, legal) for key, value in wrong.items()]


def default_workload(model: Model, gpus: int, seq: int | None, batch: int | None, precision: str | None) -> tuple[Training, list[str]]:
    """The workload, and in words what was not said: a sequence of up to 8,192 tokens, about four million tokens a step,
    a batch that every number of replicas up to the GPU count divides as well as it can."""
    assumed = []
    if seq is None:
        seq = min(model.max_positions, DEFAULT_SEQ)
        assumed.append(f"sequence of {seq:,} tokens (--seq)")
    if batch is None:
        batch = max(gpus, DEFAULT_STEP_TOKENS // seq // gpus * gpus)
        assumed.append(f"batch of {batch:,} sequences (--batch)")
    return Training(seq=seq, batch=batch, precision=precision), assumed


def fitting_workload(model: Model, layout: Layout) -> Training:
    """A workload that every layout can cut, for commands that do not depend on it."""
    chunks = 2 * max(1, layout.cp) * max(1, layout.tp)
    return Training(seq=chunks * max(1, min(model.max_positions, 8192) // chunks), batch=max(1, layout.dp * layout.mb * 2 * layout.pp))


def device_mistakes(cluster: Cluster | None, workload: Training | None, asked: Asked) -> list[Mistake]:
    """Units that the device lacks: of the precision's products, and of 16-bit attention, which fp8 recipes need as well."""
    if cluster is None:
        return []
    peaks = dict(cluster.device.peak_flops_per_s)
    half = "bf16" in peaks or "float16" in peaks  # fp16 stands in for bf16 where that is missing (V100)
    compute = PRECISIONS[workload.precision].compute if workload and workload.precision else "bf16"
    if (compute in peaks and half) or (compute == "bf16" and half):
        return []
    if not half:
        legal = "bf16 or float16, which attention needs"
        return [Mistake(cluster.name, "peak_flops_per_s", ", ".join(peaks), legal, problem="has no 16-bit unit")]
    problem = f"needs {compute} units, which {cluster.device.name} does not have"
    legal = ", ".join(name for name, recipe in PRECISIONS.items() if recipe.compute in peaks or recipe.compute == "bf16")
    return [Mistake(asked.source, f"{asked.dashes}precision", workload.precision if workload else None, legal, problem=problem)]
