"""Models as TOML in our own words: the catalog's form, and one that users may write.

The keys are the fields of ``Model`` and of the dataclasses inside it, in tables of their names; ``layers`` is runs of kinds.

    source = "https://huggingface.co/mistralai/Mixtral-8x7B-v0.1/blob/main/config.json"
    vocab_size = 32_000
    hidden_size = 4096
    ffn_size = 14_336
    layers = ["32 x moe"]

    [attention]
    num_heads = 32
    num_kv_heads = 8

    [moe]
    num_experts = 8
    top_k = 2
    expert_ffn_size = 14_336

A key that is left out has the dataclass's default; num_kv_heads is num_heads and head_dim hidden_size / num_heads.
``source`` says where all values come from, ``[sources]`` where single keys do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from meshwright.errors import Mistakes
from meshwright.spec.files import read_toml
from meshwright.spec.layer_runs import read_layers
from meshwright.spec.model import Attention, Mla, Model, Moe, Rope
from meshwright.spec.model_rules import note_broken_rules
from meshwright.spec.rope_scaling import ROPE_TYPES, read_scaling
from meshwright.spec.tables import Table
from meshwright.units import DTYPE_BYTES

__all__ = ["load_model_file", "read_model_file"]


def load_model_file(path: Path, name: str = "") -> Model:
    """The model of a TOML file, named after it unless ``name`` is given. Raises InputError with every mistake in it."""
    return read_model_file(read_toml(path), str(path), name or path.stem)


def read_model_file(values: dict[str, object], file: str, name: str) -> Model:
    """The model of the tables of a file; ``file`` is named in mistakes. Raises InputError with every mistake."""
    with Mistakes.of(file) as mistakes:
        tables = _Tables(values, mistakes)
        model = _read_model(tables, name)
        for table in tables:
            table.refuse_unread()
        note_broken_rules(model, tables)
    return model


class _Tables:
    """The tables of one file; a field such as ``moe.top_k`` is the key ``top_k`` of its table ``[moe]``."""

    def __init__(self, values: dict[str, object], mistakes: Mistakes) -> None:
        self.top = Table(values, mistakes)
        self.attention = self.top.table("attention") or Table({}, Mistakes(mistakes.file))
        self.mla = self.attention.table("mla", required=False)
        self.moe = self.top.table("moe", required=False)
        self.rope = self.top.table("rope", required=False) or Table({}, mistakes, "rope.")
        self.scaling = self.rope.table("scaling", required=False)
        self._by_prefix = {"": self.top, "attention": self.attention, "attention.mla": self.mla, "moe": self.moe, "rope": self.rope}

    def __iter__(self) -> Iterator[Table]:
        return iter(table for table in (*self._by_prefix.values(), self.scaling) if table is not None)

    def sound(self, *keys: str) -> bool:
        """Whether the fields were read without a mistake."""
        return all(table.sound(key) for table, key in map(self._find, keys))

    def note(self, key: str, legal: str, hint: str = "", problem: str = "") -> None:
        """Note a mistake in a field."""
        table, name = self._find(key)
        table.note(name, legal, hint, problem)

    def _find(self, field: str) -> tuple[Table, str]:
        prefix, _, key = field.rpartition(".")
        return self._by_prefix[prefix] or self.top, key


def _read_model(tables: _Tables, name: str) -> Model:
    top, default = tables.top, _defaults(Model)
    hidden = top.integer("hidden_size")
    max_positions = top.integer("max_positions", default["max_positions"])
    attention = _read_attention(tables, hidden)
    _read_sources(top)
    return Model(
        name=name,
        vocab_size=top.integer("vocab_size"),
        hidden_size=hidden,
        ffn_size=top.integer("ffn_size"),
        attention=attention,
        layers=read_layers(top, "layers"),
        moe=_read_moe(tables.moe) if tables.moe is not None else None,
        activation=_choice(top, Model, "activation"),
        activation_limit=top.number("activation_limit", None, above=0.0),
        mlp_bias=top.flag("mlp_bias", False),
        norm=_choice(top, Model, "norm"),
        norm_eps=top.number("norm_eps", default["norm_eps"], low=0.0, high=1.0),
        positions=_choice(top, Model, "positions"),
        rope=_read_rope(tables, max_positions, attention),
        max_positions=max_positions,
        embedding_norm=top.flag("embedding_norm", False),
        tied_embeddings=top.flag("tied_embeddings", False),
        mtp_layers=top.integer("mtp_layers", 0, low=0, high=10**5),
        stored_dtype=top.choice("stored_dtype", DTYPE_BYTES, default["stored_dtype"]),
        source=top.text("source", "", multiline=True),
    )


def _read_attention(tables: _Tables, hidden: int) -> Attention:
    table = tables.attention
    mla = _read_mla(tables.mla) if tables.mla is not None else None
    heads = table.integer("num_heads")
    if mla is None and "head_dim" not in table and hidden % heads and table.sound("num_heads") and tables.top.sound("hidden_size"):
        table.note("head_dim", "a whole number", problem=f"is left out, and {heads} heads do not divide hidden_size = {hidden}")
    return Attention(
        num_heads=heads,
        num_kv_heads=table.integer("num_kv_heads", heads),
        head_dim=table.integer("head_dim", mla.qk_head_dim if mla else max(1, hidden // heads)),
        qkv_bias=table.flag("qkv_bias", False),
        out_bias=table.flag("out_bias", False),
        qk_norm=table.flag("qk_norm", False),
        sinks=table.flag("sinks", False),
        mla=mla,
    )


def _read_mla(table: Table) -> Mla:
    return Mla(
        q_lora_rank=table.integer("q_lora_rank", None),
        kv_lora_rank=table.integer("kv_lora_rank"),
        qk_nope_head_dim=table.integer("qk_nope_head_dim"),
        qk_rope_head_dim=table.integer("qk_rope_head_dim"),
        v_head_dim=table.integer("v_head_dim"),
    )


def _read_moe(table: Table) -> Moe:
    return Moe(
        num_experts=table.integer("num_experts"),
        top_k=table.integer("top_k"),
        expert_ffn_size=table.integer("expert_ffn_size"),
        shared_ffn_size=table.integer("shared_ffn_size", 0, low=0),
        score=_choice(table, Moe, "score"),
        router_bias=table.flag("router_bias", False),
        selection_bias=table.flag("selection_bias", False),
        expert_bias=table.flag("expert_bias", False),
        num_groups=table.integer("num_groups", 1),
        top_groups=table.integer("top_groups", 1),
        norm_topk=table.flag("norm_topk", True),
        routed_scale=table.number("routed_scale", 1.0, above=0.0),
        aux_loss_coefficient=table.number("aux_loss_coefficient", 0.0, low=0.0),
    )


def _read_rope(tables: _Tables, max_positions: int, attention: Attention) -> Rope:
    table, scaling = tables.rope, tables.scaling
    rotary_dim = table.integer("rotary_dim", None)
    rotating = attention.mla.qk_rope_head_dim if attention.mla else rotary_dim or attention.head_dim
    return Rope(
        theta=table.number("theta", Rope.theta, above=1.0, high=1e12),
        scaling=() if scaling is None else read_scaling(scaling, scaling.choice("rope_type", ROPE_TYPES), max_positions, rotating),
        rotary_dim=rotary_dim,
        interleaved=table.flag("interleaved", False),
    )


def _read_sources(top: Table) -> None:
    """``[sources]`` holds text for keys of the file, dotted where they are in a table."""
    sources = top.table("sources", required=False)
    for key in sources or ():
        assert sources is not None
        sources.text(key, multiline=True)


def _choice(table: Table, cls: type, key: str) -> Any:
    """A field that has one of a few words."""
    return table.choice(key, get_args(get_type_hints(cls)[key]), _defaults(cls)[key])


def _defaults(cls: type[Any]) -> dict[str, Any]:
    return {field.name: field.default for field in fields(cls)}
