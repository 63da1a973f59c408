"""A unit: the parameters that data parallelism moves at once, one unit per layer and one root (DESIGN section 4.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.parameters import Parameter

ROOT = "root"
"""Name of the unit that holds what no layer holds."""

EXPERT_CUTS = ("expert_rows", "expert_columns", "expert_whole")


@dataclass(frozen=True, kw_only=True)
class Held:
    """One trained parameter as this rank holds it before ZeRO.

    Attributes:
        name: inside the unit (``attention.qkv.weight``).
        expert: it lives on the expert fold (ep, etp, edp) instead of (tp, fsdp).
        copies: tp ranks (for experts etp ranks) that hold the same entries.
        partial: its gradient is a summand over tp: each of those ranks saw other tokens, or other heads.
        kv_first_row, kv_copies: rows from there on are of kv heads that ``kv_copies`` tp ranks hold; their gradients are
            summands over those. None, 1 where every rank has its own.
    """

    name: str
    expert: bool = False
    copies: int = 1
    partial: bool = False
    kv_first_row: int | None = None
    kv_copies: int = 1


@dataclass(frozen=True, kw_only=True)
class Unit:
    """name: ``layers.3`` or ``root``. module: the one whose parameters (submodules of other units left out) these are."""

    name: str
    module: nn.Module
    held: tuple[Held, ...]

    def parameter(self, held: Held) -> nn.Parameter:
        """The module's parameter of that name as it is now (FSDP2 puts another one there)."""
        return self.module.get_parameter(held.name)

    @property
    def parts(self) -> tuple[tuple[Held, ...], ...]:
        """The dense and the expert parameters, which live on different groups; without empty ones."""
        dense = tuple(held for held in self.held if not held.expert)
        experts = tuple(held for held in self.held if held.expert)
        return tuple(part for part in (dense, experts) if part)


def hold(parameters: Iterable[Parameter], model: Model, layout: Layout) -> tuple[Held, ...]:
    """How a rank of this layout holds a unit's trained parameters."""
    return tuple(_hold(parameter, model, layout) for parameter in parameters if parameter.trained)


def _hold(parameter: Parameter, model: Model, layout: Layout) -> Held:
    name = f"{parameter.module}.{parameter.name}"
    if parameter.cut in EXPERT_CUTS:
        return Held(name=name, expert=True, copies=layout.etp if parameter.cut == "expert_whole" else 1)
    whole = parameter.cut == "whole" or (parameter.cut == "vocab" and not layout.vocab)
    attention = model.attention
    if parameter.cut == "qkv" and layout.tp > attention.num_kv_heads:
        first = attention.num_heads // layout.tp * attention.head_dim
        return Held(name=name, kv_first_row=first, kv_copies=layout.tp // attention.num_kv_heads)
    partial = layout.tp > 1 and whole and (layout.sp or parameter.by_head)
    return Held(name=name, copies=layout.tp if whole else 1, partial=partial)


class Leaves:
    """A module's parameters and buffers by dotted name, found once, and read as they are now: FSDP2 puts gathered ones in their place.

    but: without those of this submodule.
    """

    def __init__(self, root: nn.Module, but: nn.Module | None = None) -> None:
        self._places = [
            (f"{path}.{name}" if path else name, held, name)
            for path, module in root.named_modules(memo=None if but is None else set(but.modules()))
            for held in (module._parameters, module._buffers)
            for name in held
        ]

    def now(self) -> dict[str, Tensor]:
        return {full: tensor for full, held, name in self._places if (tensor := held[name]) is not None}


def add_parameters(root: nn.Module, tensors: Mapping[str, Tensor], trained: Iterable[str] | None = None) -> None:
    """Give a module parameters of these dotted names, in submodules; those that are not ``trained`` (None: all are) become buffers."""
    wanted = set(tensors if trained is None else trained)
    for name, tensor in tensors.items():
        *path, last = name.split(".")
        module = root
        for step in path:
            if step not in module._modules:
                module.add_module(step, nn.Module())
            module = module.get_submodule(step)
        if name in wanted:
            module.register_parameter(last, nn.Parameter(tensor))
        else:
            module.register_buffer(last, tensor)
