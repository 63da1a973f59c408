"""What must fit together inside one model, whichever way it was read: one function for each rule.

A rule names fields of ``Model`` in dotted form (``attention.num_kv_heads``). A reader whose file has other names for
them (config.json: ``num_key_value_heads``) translates; see ``note_broken_rules``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from meshwright.errors import Mistakes
from meshwright.spec.model import Model
from meshwright.spec.parameters import Parameter, embedding_parameters, layer_parameters

__all__ = ["Broken", "broken_rules", "check_model", "note_broken_rules"]

LARGEST_TENSOR = 1 << 53
"""Elements of one tensor. Above it float64, in which counts are kept, no longer holds every whole number."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that a model breaks: the fields it is about, the one to change first."""

    fields: tuple[str, ...]
    legal: str
    problem: str
    hint: str = ""


Rule = Callable[[Model], Iterator[Broken]]


def check_model(model: Model) -> None:
    """Raises InputError with every rule that ``model`` breaks. For models that are built in Python."""
    with Mistakes.of(model.name) as mistakes:
        for broken in broken_rules(model):
            mistakes.add(broken.fields[0], _value(model, broken.fields[0]), broken.legal, broken.hint, broken.problem)


class Notes(Protocol):
    """Where mistakes go: a tables.Table, or what stands for several of them."""

    def sound(self, *keys: str) -> bool: ...

    def note(self, key: str, legal: str, hint: str = "", problem: str = "") -> None: ...


def note_broken_rules(model: Model, notes: Notes, keys: Mapping[str, str] | None = None) -> None:
    """Note the rules that ``model``, just read from a file, breaks.

    Args:
        model: may hold stand-ins where a key was wrong; a rule about such a key is passed over.
        notes: where mistakes go.
        keys: the file's key for each field that has another name there.
    """
    for broken in broken_rules(model):
        names = [(keys or {}).get(field, field) for field in broken.fields]
        if notes.sound(*names):
            problem, legal = broken.problem, broken.legal
            for field, name in zip(broken.fields, names, strict=True):
                problem, legal = problem.replace(f"`{field}`", f"`{name}`"), legal.replace(f"`{field}`", f"`{name}`")
            notes.note(names[0], legal, broken.hint, problem)


def broken_rules(model: Model) -> Iterator[Broken]:
    """Every rule that ``model`` breaks."""
    for rule in RULES:
        yield from rule(model)


def kv_heads_divide_heads(model: Model) -> Iterator[Broken]:
    """Each key and value head serves the same number of query heads; latent attention has one for each."""
    a = model.attention
    fields = ("attention.num_kv_heads", "attention.num_heads")
    if a.mla and a.num_kv_heads != a.num_heads:
        yield Broken(fields, f"{a.num_heads}", "is not `attention.num_heads`, as latent attention needs")
    elif a.num_heads % a.num_kv_heads:
        yield Broken(fields, f"a divisor of `attention.num_heads` = {a.num_heads}", "does not divide the query heads")


def rotating_dims_are_pairs(model: Model) -> Iterator[Broken]:
    """Rotary positions turn pairs of dims (RoFormer, arXiv 2104.09864, section 3.2)."""
    if model.positions != "rope":
        return
    a = model.attention
    if a.mla:
        if a.mla.qk_rope_head_dim % 2:
            yield Broken(("attention.mla.qk_rope_head_dim",), "an even number", "cannot be rotated in pairs")
    elif model.rope.rotary_dim is not None:
        if model.rope.rotary_dim % 2 or model.rope.rotary_dim > a.head_dim:
            fields = ("rope.rotary_dim", "attention.head_dim")
            yield Broken(fields, f"an even number up to `attention.head_dim` = {a.head_dim}", "cannot be rotated in pairs")
    elif a.head_dim % 2:
        yield Broken(("attention.head_dim",), "an even number", "cannot be rotated in pairs")


def latent_head_dim(model: Model) -> Iterator[Broken]:
    """A latent head's q and k have a part without positions and a rotated part."""
    a = model.attention
    if a.mla and a.head_dim != a.mla.qk_head_dim:
        fields = ("attention.head_dim", "attention.mla.qk_nope_head_dim", "attention.mla.qk_rope_head_dim")
        legal = f"{a.mla.qk_head_dim} = `{fields[1]}` + `{fields[2]}`"
        yield Broken(fields, legal, "is not the sum of its parts")


def experts_per_token(model: Model) -> Iterator[Broken]:
    """A token can only go to experts that are there, in the groups that are chosen first."""
    if model.moe is None:
        return
    moe = model.moe
    if moe.top_k > moe.num_experts:
        yield Broken(("moe.top_k", "moe.num_experts"), f"1 to `moe.num_experts` = {moe.num_experts}", "is more than there are")
    elif moe.num_experts % moe.num_groups == 0 and moe.top_k > (reach := moe.num_experts // moe.num_groups * moe.top_groups):
        fields = ("moe.top_k", "moe.num_experts", "moe.num_groups", "moe.top_groups")
        yield Broken(fields, f"1 to {reach}", f"is more than the {reach} experts of {moe.top_groups} groups")


def expert_groups(model: Model) -> Iterator[Broken]:
    """Group-limited routing: equal groups, scored by their best two experts (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""
    if model.moe is None:
        return
    moe = model.moe
    fields = ("moe.num_groups", "moe.num_experts")
    if moe.num_experts % moe.num_groups:
        yield Broken(fields, f"a divisor of `moe.num_experts` = {moe.num_experts}", "does not divide the experts")
    elif moe.score == "sigmoid" and moe.num_experts // moe.num_groups < 2:
        yield Broken(fields, f"at most {moe.num_experts // 2}", "leaves no two experts in a group to score it by")
    if moe.top_groups > moe.num_groups:
        yield Broken(("moe.top_groups", "moe.num_groups"), f"1 to `moe.num_groups` = {moe.num_groups}", "is more than there are")


def experts_have_layers(model: Model) -> Iterator[Broken]:
    """The sizes of the experts are there exactly when a layer uses them."""
    uses = any(kind.moe for kind in model.kinds)
    if uses and model.moe is None:
        yield Broken(("layers", "moe"), "dense layers, or a table [moe]", "has MoE layers, but there is no [moe]")
    if model.moe is not None and not uses:
        yield Broken(("layers", "moe"), "at least one moe layer, or no table [moe]", "has no MoE layer for the experts of [moe]")


def activation_limit(model: Model) -> Iterator[Broken]:
    """The clamped SwiGLU has a limit, and no other activation does."""
    if (model.activation == "swiglu_clamped") != (model.activation_limit is not None):
        yield Broken(("activation_limit", "activation"), "a number with swiglu_clamped, else nothing", "does not fit the activation")


def tensors_are_countable(model: Model) -> Iterator[Broken]:
    """No tensor has more elements than can be counted exactly."""
    largest = max((p for p in _parameters(model)), key=lambda parameter: parameter.size)
    if largest.size > LARGEST_TENSOR:
        shape = " x ".join(map(str, largest.shape))
        yield Broken(("hidden_size",), f"tensors of at most 2^53 elements; {largest.module} would be {shape}", "makes the model too large")


RULES: tuple[Rule, ...] = (
    kv_heads_divide_heads,
    rotating_dims_are_pairs,
    latent_head_dim,
    experts_per_token,
    expert_groups,
    experts_have_layers,
    activation_limit,
    tensors_are_countable,
)


def _parameters(model: Model) -> Iterator[Parameter]:
    yield from embedding_parameters(model)
    for kind in model.kinds:
        if not kind.moe or model.moe is not None:
            yield from layer_parameters(model, kind)


def _value(model: Model, field: str) -> object:
    value: object = model
    for name in field.split("."):
        value = getattr(value, name, None)
    return value
