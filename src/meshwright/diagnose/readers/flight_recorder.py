"""torch's flight-recorder dumps: pickle or JSON, one file per rank, versions 2.x, of NCCL, gloo and others.

Read as torch documents them (docs.pytorch.org, "Flight Recorder for Debugging Stuck Jobs"; torch/csrc/distributed/c10d/FlightRecorder):
``entries`` are the last calls, ``pg_config`` the groups with their ranks, ``pg_status`` each group's last enqueued and completed work.
What the format leaves to the reader:

- The rank is not in the file: it is the number at the end of its name, checked against the groups that it lists.
- ``pg_status`` counts by a group's local number, which an entry ties to a name; where no entry does, both lists, each in order of
  creation, are laid side by side.
- Calls inside a coalesced block never change their state; the ``coalesced`` entry that closes the block has it.
- gloo's dumps have no sends and receives, call every state "scheduled", retire what has timed out like what is done, and what is done only
  some time later: their states say nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from meshwright.diagnose.calls import Call, RankCalls, Status
from meshwright.diagnose.readers.plain_pickle import load
from meshwright.diagnose.readers.reader import Reader
from meshwright.diagnose.source import Source, Unreadable
from meshwright.recording.events import Event, Group
from meshwright.units import DTYPE_BYTES

MAX_BYTES = 1 << 28
"""An entry is about 200 bytes, with its frames 2,000: 100,000 entries."""

OPS = {
    "all_gather_v": "all_gather", "_all_gather_base": "all_gather", "all_gather_single": "all_gather", "allgather": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather", "ALLGATHER_coalesced": "all_gather", "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base": "reduce_scatter", "reduce_scatter_single": "reduce_scatter", "reduce_scatter_v": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter", "REDUCE_SCATTER_coalesced": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter", "_broadcast_oop": "broadcast", "_reduce_oop": "reduce", "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce", "all_reduce_barrier": "barrier", "all_to_all_single": "all_to_all",
    "all_to_all_v_single": "all_to_all", "alltoall": "all_to_all", "alltoall_base": "all_to_all",
}  # fmt: skip
"""torch's profiling names by the collective that they are; a name that is not here is its own."""

DTYPES = {
    "Double": "float64", "Float": "float32", "BFloat16": "bf16", "Half": "float16", "Long": "int64", "Int": "int32", "Char": "int8",
    "Byte": "uint8", "Bool": "bool", "Float8_e4m3fn": "fp8", "Float8_e5m2": "fp8-e5m2", "Short": "int16",
}  # fmt: skip


def recognises(source: Source) -> bool:
    """A pickle, or JSON with a dump's keys."""
    head = source.head
    if head.startswith(b"\x80") and len(head) > 1 and head[1] <= 5:
        return True
    return head.lstrip().startswith(b"{") and any(key in head for key in (b'"pg_config"', b'"pg_status"', b'"nccl_version"', b'"entries"'))


def read(source: Source) -> Iterator[RankCalls]:
    """The rank's calls. Raises Unreadable."""
    dump = _loaded(source)
    entries = dump.get("entries") or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise Unreadable("is not a flight-recorder dump: `entries` is not a list of objects")
    configs = dump.get("pg_config")
    groups = _groups(configs if isinstance(configs, dict) else {}, _descriptions(entries))
    rank = _rank(source.name, dump, groups)
    world = max((len(group.ranks) for group in groups.values()), default=0)
    gloo = _is_gloo(dump, entries)
    calls = tuple(_calls(entries, groups, rank))
    if gloo:
        calls = tuple(replace(call, done=call.done or None) for call in calls)
    yield RankCalls(
        rank=rank, source=source.name, kind="dump", world_size=max(world, max((max(g.ranks) + 1 for g in groups.values()), default=0)),
        groups={group.name: group for group in groups.values()}, calls=calls, status=_status(dump.get("pg_status"), entries, groups),
        from_start=bool(calls) and calls[0].event.index == 0, sees_p2p=not gloo, tells_done=not gloo,
    )  # fmt: skip


def _loaded(source: Source) -> dict[str, Any]:
    data = source.read(MAX_BYTES)
    if data.startswith(b"\x80"):
        dump = load(data)
    else:
        try:
            dump = json.loads(data)
        except (ValueError, RecursionError):
            raise Unreadable("is torn or damaged JSON") from None
    if not isinstance(dump, dict) or not ({"entries", "pg_status", "pg_config"} & set(dump)):
        raise Unreadable("is a pickle or JSON, but not a flight-recorder dump")
    version = dump.get("version")
    if isinstance(version, str) and not version.startswith("2."):
        raise Unreadable(f"is a dump of version {version[:20]}, not 2.x (torch 2.4 or newer)")
    return dump


def _is_gloo(dump: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> bool:
    names = {str(entry.get("profiling_name", "")).partition(":")[0] for entry in entries}
    return "gloo" in names or (not names and "nccl_version" not in dump and not dump.get("comm_lib_version"))


# --- groups -----------------------------------------------------------------------------------------------------


def _descriptions(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What entries call their groups: ``("35", "TENSOR_MODEL_PARALLEL_GROUP")``."""
    pairs = [entry.get("process_group") for entry in entries]
    return {str(pair[0]): str(pair[1]) for pair in pairs if isinstance(pair, list | tuple) and len(pair) == 2}


def _groups(configs: Mapping[str, Any], descriptions: Mapping[str, str]) -> dict[str, Group]:
    """By the name that entries give. Groups of one rank send nothing and are kept: they help to tell the rank."""
    groups = {}
    for key, config in configs.items():
        ranks = _ints(config.get("ranks")) if isinstance(config, dict) else ()
        if ranks:
            name = str(config.get("name") or key) or "0"  # gloo leaves the default group's name empty; its entries call it "0"
            desc = str(config.get("desc") or descriptions.get(name) or ("default_pg" if name == "0" else ""))
            groups[name] = Group(name=_shown(name, desc), axis=desc or name, ranks=ranks)
    return groups


def _shown(name: str, desc: str) -> str:
    """``35:TENSOR_MODEL_PARALLEL_GROUP``: alone neither tells one tp group from the next to a reader."""
    if desc and desc not in ("undefined", name):
        return f"{name}:{desc}"
    return f"group {name}" if name.isdigit() else name


def _ints(value: object) -> tuple[int, ...]:
    """The numbers of a list, or of its text: ``"[0, 1]"``."""
    if isinstance(value, str):
        return tuple(map(int, re.findall(r"\d{1,9}", value)))
    if isinstance(value, list | tuple):
        return tuple([number for number in value if isinstance(number, int)])
    return ()


def _rank(name: str, dump: Mapping[str, Any], groups: Mapping[str, Group]) -> int:
    """Told by the file's name, unless the file itself tells otherwise. Raises Unreadable."""
    stated = dump.get("rank")
    if isinstance(stated, int):
        return stated
    stem = re.sub(r"(\.(json|pkl|pickle|pt|bin|gz|log|txt|trace|dump))+$", "", re.split(r"[/:\\]", name)[-1], flags=re.IGNORECASE)
    named = re.findall(r"rank[_\-.]?(\d{1,7})", stem, re.IGNORECASE)
    numbers = [int(number) for number in (*re.findall(r"\d{1,7}", stem), *named)]
    possible = set.intersection(*(set(group.ranks) for group in groups.values())) if groups else set(numbers)
    fitting = [number for number in reversed(numbers) if number in possible]  # the last number, or what follows "rank"
    if fitting:
        return fitting[0]
    if len(possible) == 1:
        return possible.pop()
    if not numbers:
        raise Unreadable("does not tell its rank: its name must end in it, as torch names dumps (dump_12)")
    raise Unreadable(f"is named after rank {numbers[-1]}, but lists groups that this rank is not in")


def _status(told: object, entries: Sequence[Mapping[str, Any]], groups: Mapping[str, Group]) -> dict[str, Status]:
    """By the shown name of the group."""
    if not isinstance(told, dict):
        return {}
    names, descriptions = {str(entry.get("pg_id")): _name(entry) for entry in entries}, _descriptions(entries)
    numeric = [name for name in groups if name.isdigit()]
    if len(numeric) == len(groups) == len(told) and all(str(key).isdigit() for key in told):
        beside = dict(zip(sorted(map(str, told), key=int), sorted(numeric, key=int), strict=True))
        if all(beside.get(number) == name for number, name in names.items()):
            names = beside
    found = {}
    for key, counts in told.items():
        name = names.get(str(key))
        if name is not None and isinstance(counts, dict):
            shown = groups[name].name if name in groups else _shown(name, descriptions.get(name, ""))
            found[shown] = Status(
                enqueued=_count(counts.get("last_enqueued_collective")), completed=_count(counts.get("last_completed_collective"))
            )
    return found


def _count(value: object) -> int | None:
    """-1 is torch's "none yet"."""
    return max(0, value) if isinstance(value, int) else None


def _description(entry: Mapping[str, Any]) -> str:
    group = entry.get("process_group")
    return str(group[1]) if isinstance(group, list | tuple) and len(group) == 2 else ""


def _name(entry: Mapping[str, Any]) -> str:
    """An entry's group."""
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and group:
        return str(group[0])
    return str(entry.get("pg_name", entry.get("pg_id", "")))


# --- calls ------------------------------------------------------------------------------------------------------


def _calls(entries: Sequence[Mapping[str, Any]], groups: Mapping[str, Group], rank: int) -> Iterator[Call]:
    ordered = sorted(entries, key=lambda entry: _number(entry, "record_id") or 0)
    closed = _coalesced(ordered)
    for position, entry in enumerate(ordered):
        op, ends = _op(entry)
        if op == "coalesced":
            continue
        p2p = op in ("send", "recv")
        state = closed.get(_block(entry, p2p), entry)
        inside = state is not entry and state.get("_position", -1) > position
        yield _call(entry, op, ends, groups, rank, done=_done(state if inside else entry))


def _coalesced(entries: Sequence[Mapping[str, Any]]) -> dict[tuple[object, ...], dict[str, Any]]:
    """The closing entry of each coalesced block, with its position."""
    found = {}
    for position, entry in enumerate(entries):
        if _op(entry)[0] == "coalesced":
            for p2p in (True, False):
                found[_block(entry, p2p)] = dict(entry) | {"_position": position}
    return found


def _block(entry: Mapping[str, Any], p2p: bool) -> tuple[object, ...]:
    return _name(entry), p2p, entry.get("p2p_seq_id" if p2p else "collective_seq_id")


def _op(entry: Mapping[str, Any]) -> tuple[str, tuple[int, int] | None]:
    """(our name, (this end, other end) of a P2P in the group's numbers)."""
    return _parsed(str(entry.get("profiling_name", "")))


@lru_cache(maxsize=10_000)
def _parsed(profiling_name: str) -> tuple[str, tuple[int, int] | None]:
    """Of ``nccl:send 0->3``."""
    name, _, ends = profiling_name.partition(":")[2].partition(" ")
    match = re.fullmatch(r"(\d{1,9})(?:->|<-)(\d{1,9})", ends)
    return OPS.get(name, name), (int(match[1]), int(match[2])) if match else None


def _done(entry: Mapping[str, Any]) -> bool:
    return entry.get("state") == "completed" or bool(entry.get("retired")) or entry.get("time_discovered_completed_ns") is not None


def _call(entry: Mapping[str, Any], op: str, ends: tuple[int, int] | None, groups: Mapping[str, Group], rank: int, done: bool) -> Call:
    name = _name(entry)
    group = groups.get(name)
    sent, received = _sizes(entry.get("input_sizes")), _sizes(entry.get("output_sizes"))
    p2p = op in ("send", "recv")
    shapes = received if op in ("all_gather", "scatter") else sent
    dtypes = entry.get("input_dtypes") or entry.get("output_dtypes") or [""]
    dtype = DTYPES.get(str(dtypes[0]), str(dtypes[0]))
    shape = shapes[0] if len(shapes) == 1 else (sum(map(prod, shapes)),) if shapes else ()
    created = _number(entry, "time_created_ns")
    event = Event(
        index=_number(entry, "record_id") or 0, kind="p2p" if p2p else "collective", op=op,
        group=group.name if group else _shown(name, _description(entry)),
        seq=_number(entry, "p2p_seq_id" if p2p else "collective_seq_id", "seq_id"), peer=_peer(ends, group),
        dtype=dtype, shape=shape, payload_bytes=int(prod(shape) * DTYPE_BYTES.get(dtype, 1)), call_site=_call_site(entry.get("frames")),
        enqueued_s=None if created is None else created / 1e9,
    )  # fmt: skip
    return Call(event=event, done=done, sent_elements=sum(map(prod, sent)), received_elements=sum(map(prod, received)))


def _number(entry: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = entry.get(key)
        if isinstance(value, int):
            return value
    return None


def _sizes(value: object) -> list[tuple[int, ...]]:
    return [_ints(shape) for shape in value] if isinstance(value, list | tuple) else []


def _peer(ends: tuple[int, int] | None, group: Group | None) -> int | None:
    """The global rank at the other end."""
    if ends is None:
        return None
    if group is None:
        return ends[1]
    return group.ranks[ends[1]] if ends[1] < len(group.ranks) else None


def _call_site(frames: object) -> str:
    """``folder/file.py:line`` of the innermost frame that is not torch's own."""
    for frame in frames if isinstance(frames, list) else ():
        if isinstance(frame, dict):
            path = str(frame.get("filename", ""))
            if path and not re.search(r"(site|dist)-packages/torch/|/torch/(distributed|nn|autograd|_functorch|utils)/|^<", path):
                return f"{'/'.join(path.split('/')[-2:])}:{frame.get('line')}"
    return ""


READER = Reader(kind=("flight-recorder dump", "flight-recorder dumps"), recognises=recognises, read=read)
