"""What torch's profiler says of a call to a process group: the metadata of ``record_param_comms`` and of the kernels it launched.

Keys as torch 2.3 and later write them (ParamCommsUtils of torch's c10d); older traces have the tensor's dims at most.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from meshwright.recording.communication_kernels import op_in_words
from meshwright.recording.trace import Call
from meshwright.units import DTYPE_BYTES

__all__ = ["call_of_annotation", "call_of_metadata", "groups_of_header", "merged"]

_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bf16", "long": "int64", "long int": "int64", "int": "int32",
    "byte": "int8", "char": "int8", "unsigned char": "int8", "signed char": "int8", "bool": "bool",
}  # fmt: skip
"""torch's names of scalar types, in lower case; those of float8 all begin with float8."""

_FULL = ("all_gather", "reduce_scatter")
"""Ops whose payload is the larger of what goes in and what comes out."""


def call_of_metadata(args: Mapping[str, Any]) -> Call | None:
    """The call, None if ``args`` are not those of a collective."""
    name = args.get("Collective name")
    if not isinstance(name, str) or name in ("wait", "init"):
        return None
    op = name if name in ("send", "recv", "gather", "scatter") else op_in_words(name) or name
    dtype = _dtype(args.get("dtype"))
    sent, received = (_whole(args.get(key)) or 0 for key in ("In msg nelems", "Out msg nelems"))
    elements = max(sent, received) if op in _FULL or not sent else sent
    ranks = _ranks(args.get("Process Group Ranks"))
    return Call(
        op=op,
        group=_group_name(args.get("Process Group Name"), args.get("Process Group Description")),
        ranks=ranks,
        seq=_whole(args.get("Seq")),
        payload_bytes=int(elements * DTYPE_BYTES.get(dtype, 0)),
        dtype=dtype,
        peer=_peer(op, args, ranks),
    )


def call_of_annotation(name: str, args: Mapping[str, Any]) -> Call:
    """Of a span such as ``nccl:all_reduce`` or ``gloo:all_gather``, with the tensor's dims where shapes were recorded."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    dtype, elements = "", 0
    if isinstance(dims, list) and dims and isinstance(dims[0], list) and all(isinstance(size, int) for size in dims[0]):
        elements = prod(dims[0])
        dtype = _dtype(types[0]) if isinstance(types, list) and types else ""
    said, _, ends = name.partition(":")[2].partition(" ")
    op = said if said in ("send", "recv") else op_in_words(said) or said
    peer = re.fullmatch(r"\d+(?:->|<-)(\d{1,6})", ends)  # ``nccl:send 0->1``: places in the group
    return Call(op=op, dtype=dtype, payload_bytes=int(elements * DTYPE_BYTES.get(dtype, 0)), peer=int(peer[1]) if peer else None)


def merged(known: Call | None, more: Call | None) -> Call:
    """``known`` with its gaps filled from ``more``."""
    if known is None or more is None:
        return known or more or Call()
    gaps = {key: getattr(more, key) for key in Call.__slots__ if getattr(known, key) in ("", (), None)}
    return replace(known, **gaps | {"payload_bytes": known.payload_bytes or more.payload_bytes})


def groups_of_header(info: object) -> dict[str, tuple[int, ...]]:
    """Ranks of each process group, from ``distributedInfo``."""
    configs = info.get("pg_config") if isinstance(info, dict) else None
    if isinstance(configs, dict):
        configs = [{"pg_name": name, **config} for name, config in configs.items() if isinstance(config, dict)]
    if not isinstance(configs, list):
        return {}
    return {
        _group_name(config.get("pg_name"), config.get("pg_desc")): _ranks(config.get("ranks"))
        for config in configs
        if isinstance(config, dict)
    }


def _group_name(name: object, description: object) -> str:
    """``tp (3)``: descriptions are for people, names are unique."""
    known = str(name) if isinstance(name, str | int) else ""
    if isinstance(description, str) and description not in ("", "undefined", known):
        return f"{description} ({known})" if known else description
    return known


def _ranks(value: object) -> tuple[int, ...]:
    """Of a list, or of a text such as ``[0, 1]``; () where it is cut short with dots."""
    if isinstance(value, list):
        return tuple(rank for rank in value if isinstance(rank, int))
    if not isinstance(value, str) or ".." in value:
        return ()
    return tuple(map(int, re.findall(r"\d+", value)))


def _dtype(value: object) -> str:
    if not isinstance(value, str):
        return ""
    name = value.removeprefix("c10::").lower()
    return "fp8" if name.startswith("float8") else _DTYPES.get(name, "")


def _peer(op: str, args: Mapping[str, Any], ranks: tuple[int, ...]) -> int | None:
    """Global rank at the other end; the profiler gives its place in the group."""
    place = _whole(args.get({"send": "Dst Rank", "recv": "Src Rank"}.get(op, "")))
    return ranks[place] if place is not None and 0 <= place < len(ranks) else place


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) else None
