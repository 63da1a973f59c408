"""From a file to findings: which framework's it is, what it says, and which rules that breaks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.diagnose.finding import Diagnosis, Finding
from meshwright.errors import InputError, Mistake
from meshwright.lint import accelerate, deepspeed, megatron, serving, torchtitan
from meshwright.lint.configs import read_config
from meshwright.lint.models import stand_in
from meshwright.lint.setup import Setup, gpus_of
from meshwright.lint.shell import Options, options_of, read_script
from meshwright.search.runs_on import FRAMEWORKS, obstacles
from meshwright.spec.cluster import Cluster
from meshwright.spec.files import read_text
from meshwright.spec.layout import Layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.rules import CAUTIONS, RULES, Case
from meshwright.spec.rules.sizes import form_mistakes
from meshwright.spec.workload import Training
from meshwright.units import format_number_of

__all__ = ["lint"]

LEGAL = (
    "a launch script of Megatron-LM, torchtitan, vLLM or SGLang, a torchtitan job file, a DeepSpeed config, "
    "or an Accelerate config with fsdp_config"
)

LARGEST_CHARS = 1 << 20
"""Launch scripts and configs are a few thousand characters long."""

ASSUMED_CLUSTER = "h100-sxm"
"""Where nothing is said: nodes of eight GPUs, far faster inside than between, as almost all training clusters have."""

NOT_JUDGED = {"thin-micro-batch", "interleaved-slow-fabric"}
"""Rules that need the true device or fabric: asked only if the user names a cluster."""

OF_THE_MODEL = frozenset({
    "tp-heads", "tp-kv-heads", "tp-ffn", "tp-shared-ffn", "cp-ulysses-heads", "cp-ulysses-kv-heads", "seq-positions", "pp-layers",
    "stages-sum", "recompute-layers", "ep-dense", "etp-dense", "ep-experts", "etp-ffn", "kv-copies", "seq-beyond-positions",
    "vocab-padding", "thin-micro-batch",
})  # fmt: skip
"""Rules of a model's own sizes: not asked where the file does not say them, since a stand-in's sizes are nobody's."""

OF_THE_SEQUENCE = frozenset({"cp-sequence", "sp-sequence", "seq-positions", "seq-beyond-positions", "thin-micro-batch"})
"""Rules of the sequence's length: not asked where the file does not say it."""

OF_THE_BATCH = frozenset(
    {"batch", "few-micro-batches", "zero3-gathers", "zero2-pp", "pp-interleaved-m", "pp-dualpipe-even-m", "pp-dualpipe-m"}
)
"""Rules of the number of micro-batches."""

OF_THE_GPUS = frozenset({"zero-alone", "partial-node"})
"""Rules of how many GPUs there are."""

SERVING = {
    "tp-heads", "tp-kv-heads", "tp-ffn", "tp-shared-ffn", "ep-experts", "gpus", "tp-across-nodes", "ep-across-nodes", "kv-copies",
    "partial-node",
}  # fmt: skip
"""Rules that hold for inference as well; pipelines may be uneven there, and nothing is trained."""


def lint(path: Path, cluster: str | None = None, gpus: int | None = None) -> Diagnosis:
    """What is wrong or silly about the job that a file starts.

    Args:
        cluster: a catalog name or a file, to judge by its links. gpus: of the job, where the file does not say.

    Raises:
        InputError: the file cannot be read, or is of no framework that is known; no such cluster.
    """
    network = resolve_cluster(cluster) if cluster else None
    setup = _read(path, gpus)
    if gpus is not None:
        setup = replace(setup, gpus=gpus)
    findings, told = _judged(setup, network)
    assumed = setup.assumed
    if setup.model is None and not any(note.startswith("nothing of the model") for note in assumed):
        assumed += ("nothing of the model, whose sizes the file does not say: rules of its heads, layers and experts are not asked",)
    if setup.not_judged:
        assumed += (f"nothing of {', '.join(setup.not_judged)}: no rule looks at {'it' if len(setup.not_judged) == 1 else 'them'}",)
    if setup.gpus is None and not setup.serving and "dp_shard" not in setup.degrees:
        assumed += ("no more GPUs than the degrees multiply to; --gpus says how many there are",)
    if network is None:
        assumed += (f"links as fast as those of {ASSUMED_CLUSTER}; --cluster says otherwise",)
    read = (f"{'an' if setup.framework.startswith(('FSDP', 'SGLang')) else 'a'} {setup.framework} job: {told}",)
    return Diagnosis(findings=tuple(findings), verdict="fault" if findings else "healthy", read=read, notes=assumed)


def _read(path: Path, gpus: int | None) -> Setup:
    text = read_text(path, LEGAL)
    if len(text) > LARGEST_CHARS:
        raise InputError([Mistake(str(path), "", None, LEGAL, "is it the right file?", "is larger than any launch script or config")])
    suffix = path.suffix.lower()
    setup: Setup | None
    if suffix in (".json", ".toml", ".yaml", ".yml"):
        values, slips = read_config(path, suffix, text, LEGAL)
        setup = _of_config(values, gpus)
        if setup is not None:
            setup = replace(setup, problems=(*setup.problems, *slips))
    else:
        setup = _of_script(text, path.parent)
    if setup is None:
        raise InputError(
            [
                Mistake(
                    str(path),
                    "",
                    None,
                    LEGAL,
                    "its options must be in the file, or in variables that it sets",
                    "starts no job that is known",
                )
            ]
        )
    return setup


def _of_config(values: Mapping[str, Any], gpus: int | None) -> Setup | None:
    if torchtitan.is_config(values):
        return torchtitan.setup_of(values, gpus)
    if deepspeed.is_config(values):
        return deepspeed.setup_of(values, gpus)
    return accelerate.setup_of(values) if accelerate.is_config(values) else None


def _of_script(text: str, beside: Path) -> Setup | None:
    """The command of the script that says most about a layout."""
    script = read_script(text)
    for words in sorted(script.commands, key=len, reverse=True):
        options = options_of(words)
        if serving.recognises(words):
            return serving.setup_of(script, words, options, beside)
        if sum(options.has(mark) for mark in megatron.MARKS) >= 2:
            return megatron.setup_of(script, options)
        tables = _tables(options)
        if "parallelism" in tables:
            return torchtitan.setup_of(tables, *gpus_of(script, options))
        name = options.text("deepspeed-config", "ds-config", "deepspeed")
        if name and (beside / name).is_file():
            config = beside / name
            values, slips = read_config(config, ".json", read_text(config, LEGAL), LEGAL)
            setup = deepspeed.setup_of(values, *gpus_of(script, options))
            return replace(setup, problems=(*setup.problems, *slips))
    return None


def _tables(options: Options) -> dict[str, dict[str, object]]:
    """``--parallelism.tensor_parallel_degree 8`` as the table that it changes."""
    tables: dict[str, dict[str, object]] = {}
    for name, value in options.values.items():
        table, dot, key = name.partition(".")
        if dot and value is not None:
            tables.setdefault(table, {})[key.replace("-", "_")] = int(value) if re.fullmatch(r"-?[0-9]{1,9}", value) else value
    return tables


def _judged(setup: Setup, network: Cluster | None) -> tuple[list[Finding], str]:
    """The findings, and the job in one line."""
    fixed = 1
    for key in ("tp", "pp", "cp"):
        fixed *= int(str(setup.degrees.get(key, 1)))
    replicas = int(str(setup.degrees.get("dp_replicate", 1)))
    degrees = dict(setup.degrees)
    if "dp_shard" not in degrees:
        degrees["dp_shard"] = max((setup.gpus or fixed * replicas) // (fixed * replicas), 1)
    layout = Layout(**degrees)  # type: ignore[arg-type]
    model = setup.model or stand_in(
        layout.pp * layout.virtual_stages, sum(layout.stages) if layout.stages else None, layout.ep if layout.ep > 1 else 0
    )
    batch = setup.batch or layout.dp * layout.mb * layout.pp * 8
    cluster = network or _usual(setup.gpus_per_node)
    seq = setup.seq or min(model.max_positions, 1 << 13)
    case = Case(model=model, workload=Training(seq=seq, batch=batch), layout=layout, cluster=cluster, gpus=setup.gpus)
    told = f"{layout} on {format_number_of(setup.gpus or layout.world_size, 'GPU')}, nodes of {cluster.gpus_per_node}"
    found = [
        Finding(code=each.code, title=each.title, evidence=each.evidence or (f"Read as {told}",), remedy=each.remedy)
        for each in setup.problems
    ]
    if malformed := form_mistakes(case, setup.framework):
        return [*_malformed(malformed), *found], told
    broken = list(_broken(case, setup, told))
    if not any(finding.code.startswith("tp") for finding in broken):
        broken += _beyond_the_framework(case, setup, told)
    silly = _silly(case, setup, told, network is not None)
    blamed = {finding.code.partition("-")[0] for finding in broken}
    return [*broken, *(each for each in silly if not (each.code == "kv-copies" and "tp" in blamed)), *found], told


def _usual(per_node: int | None) -> Cluster:
    """The assumed cluster with nodes of that size."""
    usual = resolve_cluster(ASSUMED_CLUSTER)
    if not per_node or per_node == usual.gpus_per_node:
        return usual
    return replace(usual, tiers=tuple(replace(tier, size=per_node) if tier.size == usual.gpus_per_node else tier for tier in usual.tiers))


def _is_asked(code: str, setup: Setup) -> bool:
    """Whether the file says what the rule looks at, and nothing was told of it yet."""
    if (setup.serving and code not in SERVING) or any(problem.code == code for problem in setup.problems):
        return False  # a problem that the reader found is told in the framework's own words
    known = {
        OF_THE_MODEL: setup.model is not None,
        OF_THE_SEQUENCE: setup.seq is not None,
        OF_THE_BATCH: setup.batch is not None,
        OF_THE_GPUS: setup.gpus is not None,
    }
    return all(said for codes, said in known.items() if code in codes)


def _malformed(mistakes: list[Mistake]) -> Iterator[Finding]:
    for each in mistakes:
        yield Finding(
            code="value",
            title=f"`{each.key}` = {each.value} is not legal",
            evidence=(f"Legal: {each.legal}",),
            remedy=each.hint or each.legal,
        )


def _broken(case: Case, setup: Setup, told: str) -> Iterator[Finding]:
    """Rules that the job breaks: it will not start, or will not compute what was meant."""
    for rule in RULES:
        if _is_asked(rule.code, setup) and not rule.holds(case):
            value = rule.value(case) if rule.value else getattr(case.layout, rule.key, "")
            name = setup.words.get(rule.key, rule.key)
            yield Finding(
                code=rule.code, title=f"`{name}` = {value} {rule.problem(case)}", evidence=(f"Read as {told}",),
                remedy=setup.remedies.get(rule.code) or rule.hint(case) or (rule.legal(case) if rule.legal else "another value"),
            )  # fmt: skip


def _beyond_the_framework(case: Case, setup: Setup, told: str) -> Iterator[Finding]:
    """A tp that this framework refuses though others have it; asked where the file says which model it is."""
    framework = setup.framework.lower()
    if setup.model is None or framework not in FRAMEWORKS:
        return
    for limit in obstacles(framework, case.layout, setup.model):
        if limit.key == "tp":
            name = setup.words["tp"]
            yield Finding(
                code="tp-framework", title=f"`{name}` = {case.layout.tp} is more than {setup.framework} can do for this model",
                evidence=(f"Read as {told}", f"Source: {limit.source}"),
                remedy=f"a `{name}` among the {limit.legal}, of which there are {setup.model.attention.num_kv_heads}",
            )  # fmt: skip


def _silly(case: Case, setup: Setup, told: str, known_cluster: bool) -> Iterator[Finding]:
    """Rules of what runs and is hardly meant."""
    for caution in CAUTIONS:
        if not _is_asked(caution.code, setup) or (caution.code in NOT_JUDGED and not known_cluster):
            continue
        if caution.applies(case):
            yield Finding(
                code=caution.code, title=_in_words(caution.message(case), setup), evidence=(f"Read as {told}",), confidence="medium",
                remedy=setup.remedies.get(caution.code) or caution.remedy(case),
            )  # fmt: skip


def _in_words(message: str, setup: Setup) -> str:
    """``tp = 16 spans ...`` with the framework's word for the key that it begins with."""
    key, equals, rest = message.partition(" = ")
    return f"`{setup.words[key]}` = {rest}" if equals and key in setup.words else message
