"""What a launch script or a config says, in our terms, with the words that it says it in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.lint.shell import Options, Script
from meshwright.spec.model import Model

__all__ = ["Problem", "Setup", "gpus_of", "whole"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that a framework's own reader found."""

    code: str
    title: str
    remedy: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One job.

    Attributes:
        framework: its name for people.
        degrees: keys of Layout and their values; dp is left out where the GPUs decide.
        model: None if the file does not say enough of it.
        seq, batch, gpus, gpus_per_node: None where the file does not say.
        serving: inference: only rules that hold for it are asked.
        words: how the framework calls our keys (``tp`` -> ``--tensor-model-parallel-size``).
        remedies: what to do in the framework's own terms, by the rule's code.
        assumed: sentences on what was filled in.
        not_judged: keys of the file that change how the job runs and that no rule looks at, as the user knows them.
        problems: what the framework's reader found beside the rules.
    """

    framework: str
    degrees: Mapping[str, object]
    model: Model | None = None
    seq: int | None = None
    batch: int | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    serving: bool = False
    words: Mapping[str, str] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)
    assumed: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def gpus_of(script: Script, launched: Options) -> tuple[int | None, int | None]:
    """(GPUs, GPUs per node) as the launcher's options, Slurm's lines or well-known variables say; None where none does."""
    named = Options({name.lower().replace("_", "-"): value for name, value in script.variables.items()})
    per_node = (
        launched.number("nproc-per-node", "num-gpus", "gpus-per-node", "ntasks-per-node")
        or script.directives.number("gpus-per-node", "ntasks-per-node")
        or _of_gres(script.directives.text("gres", "gpus-per-node") or launched.text("gres"))
        or named.number("gpus-per-node", "nproc-per-node", "gpu-per-node", "num-gpus-per-node")
    )
    nodes = (
        launched.number("nnodes", "num-nodes", "nodes", "N")
        or script.directives.number("nodes", "N")
        or named.number("nnodes", "num-nodes", "nodes", "slurm-nnodes")
    )
    world = named.number("world-size", "num-gpus", "n-gpus")
    if per_node is None:
        return world, None
    said_one_node = nodes is None and not launched.has("nnodes", "num-nodes", "nodes", "N") and not script.directives.has("nodes", "N")
    return (per_node * nodes if nodes else per_node if said_one_node else world), per_node


def _of_gres(text: str | None) -> int | None:
    """``gpu:h100:8`` -> 8."""
    last = (text or "").rpartition(":")[2]
    return int(last) if re.fullmatch(r"[0-9]{1,9}", last) else None


def whole(value: object) -> int | None:
    """A config's value if it is a whole number above 0; a text of digits counts, "auto" does not."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 53 else None
