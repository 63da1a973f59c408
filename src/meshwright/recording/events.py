"""The recording's schema: one JSONL file per rank, a header line, then one line per event (DESIGN section 6).

A line is a JSON object. Three kinds of line exist:

- the header, always first: the keys of ``Header``, of which ``schema`` says the version;
- an event: the keys of ``Event``; a key that has its default value is left out;
- a completion: ``{"completes": index, "started_s": ..., "completed_s": ...}``, the times of an earlier event. An event
  is written when it is enqueued, so that a rank that dies in it leaves it behind.

Readers ignore keys that they do not know; what changes the meaning of a known key changes ``SCHEMA``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal, get_args

SCHEMA = "meshwright.recording/1"

Kind = Literal["collective", "p2p", "compute", "mark"]
KINDS: tuple[str, ...] = get_args(Kind)
PHASES = ("forward", "recompute", "backward_input", "backward_weight", "reduce", "optimizer", "prefill", "decode", "kv_transfer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A process group.

    Attributes:
        name: unique in a job and equal in every run of one layout: the axis and its number, ``tp.3``.
        axis: the mesh axis (or the product of axes) that it spans: ``tp``, ``fsdp``.
        ranks: global ranks in group order.
    """

    name: str
    axis: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The first line of a rank's file.

    Attributes:
        schema: SCHEMA of the writer.
        plan_hash: hash of the resolved plan that was run, "" where there was no plan.
        world_size, rank: of the job.
        coordinates: this rank's place on each mesh axis.
        groups: the groups that this rank belongs to.
        host, pid: of the process.
        wall_offset_s: add it to an event's time (monotonic clock of its host) for seconds since the epoch.
        versions: of what took part ({"torch": "2.13.0"}).
    """

    schema: str = SCHEMA
    plan_hash: str = ""
    world_size: int
    rank: int
    coordinates: dict[str, int] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    host: str = ""
    pid: int = 0
    wall_offset_s: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)

    def group(self, name: str) -> Group | None:
        """The group of that name, None if this rank is not in it."""
        return next((group for group in self.groups if group.name == name), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that a rank did.

    Attributes:
        index: number of the event on its rank, from 0.
        kind: "collective", "p2p", "compute" (a span per phase and layer) or "mark" (a named moment).
        step, micro_batch, chunk: where in the run; chunk is the pipeline chunk on this rank; None outside of any.
        phase: one of PHASES, "" outside of any.
        module: a name of spec/names.py.
        call_site: ``file:line`` of the code that asked for it; of the forward call for what its backward sends.
        op: a collective's or P2P's name (``all_reduce``, ``send``); what a mark says.
        reduce_op: ``sum avg max min product``, "" where nothing is reduced.
        group: name of its group in the header. seq: its number among the group's events of the same kind, from 0.
        peer: global rank at the other end (P2P), or the root (broadcast). tag: of a P2P.
        dtype: a key of units.DTYPE_BYTES. shape: of the tensor whose bytes payload_bytes counts.
        payload_bytes: DESIGN section 4.1: the tensor passed in; the full one for all_gather and reduce_scatter.
        input_splits, output_splits: rows (of dim 0) to and from each rank of the group, all_to_all only.
        asynchronous: the caller did not wait for it.
        enqueued_s, started_s, completed_s: monotonic clock; None is not yet, or not measurable.
    """

    index: int
    kind: Kind
    step: int | None = None
    micro_batch: int | None = None
    chunk: int | None = None
    phase: str = ""
    module: str = ""
    call_site: str = ""
    op: str = ""
    reduce_op: str = ""
    group: str = ""
    seq: int | None = None
    peer: int | None = None
    tag: int | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    payload_bytes: int = 0
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()
    asynchronous: bool = False
    enqueued_s: float | None = None
    started_s: float | None = None
    completed_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The times of event ``completes``."""

    completes: int
    started_s: float | None = None
    completed_s: float | None = None


MAX_RANKS = 1_000_000
"""Several times the GPUs of the largest jobs; beyond it a number is damage."""


class BadRecord(ValueError):
    """A line that is not what the schema says; its text tells the key and what was expected."""


def to_line(record: Header | Event | Completion) -> str:
    """One JSON line, without its newline; default values are left out (not the header's ``schema``)."""
    values = asdict(record)
    for each in fields(record):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if default is not MISSING and values[each.name] == default and each.name != "schema":
            del values[each.name]
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def parse_header(line: str) -> Header:
    """The header of a file's first line. Raises BadRecord."""
    values = json_object(line)
    schema = values.get("schema")
    if schema != SCHEMA:
        raise BadRecord(f"`schema` is {schema!r}, this version reads {SCHEMA!r}")
    groups = values.get("groups", [])
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise BadRecord("`groups` is not a list of objects")
    values["groups"] = [Group(**checked(group, _GROUP)) for group in groups]
    header = Header(**checked(values, _HEADER))
    if not 0 <= header.rank < header.world_size <= MAX_RANKS:
        raise BadRecord(f"rank {header.rank} of {header.world_size} is none of a job of up to {MAX_RANKS:,} ranks")
    if any(rank >= MAX_RANKS for group in header.groups for rank in group.ranks):
        raise BadRecord(f"a group holds a rank of {MAX_RANKS:,} or more")
    return header


def parse_record(line: str) -> Event | Completion:
    """The event or completion of a later line. Raises BadRecord."""
    values = json_object(line)
    if "completes" in values:
        return Completion(**checked(values, _COMPLETION))
    told = checked(values, _EVENT)
    if told["kind"] not in KINDS:
        raise BadRecord(f"`kind` is {told['kind']!r}, not one of {' '.join(KINDS)}")
    return Event(**told)


def json_object(line: str) -> dict[str, Any]:
    """The object in a line. Raises BadRecord."""
    try:
        values = json.loads(line)
    except ValueError as error:
        raise BadRecord(f"not JSON ({error})") from None
    except RecursionError:
        raise BadRecord("nested too deeply") from None
    if not isinstance(values, dict):
        raise BadRecord("not a JSON object")
    return values


@dataclass(frozen=True, slots=True)
class _Column:
    expected: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any] = lambda value: value
    required: bool = False


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def _is_size(value: object) -> bool:
    return _is_int(value) and value >= 0  # type: ignore[operator]


def _is_number(value: object) -> bool:
    """Python's JSON has NaN and infinities, too: no moment."""
    return _is_int(value) or (isinstance(value, float) and abs(value) < 1e18)


def _is_dict_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_str(value: object) -> bool:
    return isinstance(value, str)


_COLUMNS: dict[str, _Column] = {
    "int": _Column("a whole number", _is_int),
    "int | None": _Column("a whole number", lambda v: v is None or _is_int(v)),
    "float": _Column("a number", _is_number, float),
    "float | None": _Column("a number", lambda v: v is None or _is_number(v)),
    "str": _Column("a text", _is_str),
    "Kind": _Column("a text", _is_str),
    "bool": _Column("true or false", lambda v: isinstance(v, bool)),
    "tuple[int, ...]": _Column("a list of whole numbers", lambda v: isinstance(v, list) and all(map(_is_size, v)), tuple),
    "tuple[Group, ...]": _Column("a list of groups", lambda v: isinstance(v, list), tuple),
    "tuple[GroupProgress, ...]": _Column("a list of groups", lambda v: isinstance(v, list), tuple),
    "dict[str, int]": _Column("an object of whole numbers", _is_dict_of(_is_int)),
    "dict[str, str]": _Column("an object of texts", _is_dict_of(_is_str)),
}


def columns_of(record: type) -> dict[str, _Column]:
    """The check of each key, from the dataclass' annotations, so that schema and checks cannot drift."""
    columns = {}
    for each in fields(record):
        column = _COLUMNS[str(each.type)]
        required = each.default is MISSING and each.default_factory is MISSING
        columns[each.name] = _Column(column.expected, column.accepts, column.convert, required)
    return columns


_GROUP, _HEADER, _EVENT, _COMPLETION = map(columns_of, (Group, Header, Event, Completion))


def checked(values: Mapping[str, Any], columns: Mapping[str, _Column]) -> dict[str, Any]:
    """The known keys of ``values``, converted. Raises BadRecord at the first that is missing or of a wrong type."""
    found = {}
    for key, column in columns.items():
        if key not in values:
            if column.required:
                raise BadRecord(f"`{key}` is missing")
            continue
        if not column.accepts(values[key]):
            raise BadRecord(f"`{key}` is {values[key]!r}, not {column.expected}")
        found[key] = column.convert(values[key])
    return found
