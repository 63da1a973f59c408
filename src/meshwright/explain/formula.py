"""One row in full: every count of it with its formula and the numbers in it.

The formulas are the docstrings of the functions that made the numbers, so that what is printed cannot drift from what was
computed.
"""

from __future__ import annotations

import inspect
from types import ModuleType

from meshwright import compute
from meshwright.collectives import price
from meshwright.collectives.volume import wire_formula
from meshwright.explain.rows import ExplainedRow, Explanation, attended_pairs, window_of
from meshwright.explain.words import in_runs
from meshwright.ledger.blocks import attention_core
from meshwright.ledger.rows import Row
from meshwright.ledger.writer import Writer
from meshwright.mesh import Mesh
from meshwright.notation import Sharded
from meshwright.priced import Priced
from meshwright.spec.cluster import Tier
from meshwright.units import DTYPE_BYTES, format_count, format_memory, format_rate, format_seconds, format_traffic

Fact = tuple[str, str]
"""What, and its value in words."""

PRICE_LINES = {"reduce_scatter": "all_gather", "recv": "send", "grouped_matmul": "matmul"}
"""Whose line of a docstring's table speaks for which other operation."""


def in_full(found: Explanation, numbers: Priced) -> list[Fact]:
    """Everything there is to say of the one row in ``found``."""
    row = found.rows[0]
    facts = [("phase", row.phase), ("tensor before", _tensor(row.before, row.before_shape, row.row.before))]
    facts += [("tensor after", _tensor(row.after, row.after_shape, row.row.after))]
    facts += _collective(found, row, numbers) if row.op else _compute(found, row, numbers)
    facts += [("calls", _calls(found, row)), ("because", row.why)]
    return [(name, text) for name, text in facts if text]


def _tensor(text: str | None, shape: tuple[int, ...] | None, tensor: Sharded | None) -> str:
    if text is None or tensor is None:
        return ""
    if shape is None:
        return text
    size = DTYPE_BYTES[tensor.dtype]
    total = size
    for dim in shape:
        total *= dim
    return f"{text} = {' x '.join(f'{dim:,}' for dim in shape)} x {size:g} bytes = {format_memory(total)} on this rank"


def _collective(found: Explanation, row: ExplainedRow, numbers: Priced) -> list[Fact]:
    tier = next(tier for tier in numbers.cluster.tiers if tier.name == row.tier)
    n, M = row.ranks, row.payload_bytes
    sent = row.op != "recv"
    speed = f"{format_rate(tier.bandwidth_bytes_per_s)} per direction and GPU"
    return [
        ("operation", f"{row.op} over {row.axis}"),
        ("group", f"{_group(found, row, numbers)}; spans {row.tier}, {speed}"),
        ("payload", f"M = {M:,} bytes = {format_traffic(M)}: {PAYLOADS[row.op or '']}"),
        ("on the wire", f"{row.wire_bytes:,} bytes = {format_traffic(row.wire_bytes)}, n = {n}, by {wire_formula(row.op or '')}"),
        ("time", f"{format_seconds(row.each_s)}, by {_line(price, row.op or '')}" if sent else "counted on the sender"),
        ("rate", _rate(row, tier, _lanes(found, row, numbers)) if sent and row.each_s else ""),
        ("hidden", _hidden(row.row, numbers)),
    ]


LATENCY_SHARE = 0.02
"""Of a link's speed; what is sent slower than this waits for hops and launches, not for bytes."""


def _rate(row: ExplainedRow, tier: Tier, lanes: int) -> str:
    """The wire's bytes over the time, beside what the link gives: with several ranks of a node in the group the two are not of one link."""
    reached, link = row.wire_bytes / row.each_s, tier.bandwidth_bytes_per_s
    if reached < LATENCY_SHARE * link:
        alone = format_seconds(row.wire_bytes / link)
        return f"latency, not bytes: at {tier.name}'s {format_rate(link)} these {format_traffic(row.wire_bytes)} alone take {alone}"
    told = f"{format_traffic(row.wire_bytes)} in {format_seconds(row.each_s)} is {format_rate(reached)} a GPU"
    if lanes > 1:
        return f"{told}: {lanes} of the group's GPUs share faster links, and each brings its own {format_rate(link)} of {tier.name}"
    if reached > link:
        return (
            f"{told}, above {tier.name}'s {format_rate(link)}: these are a ring's bytes, and another algorithm that sends fewer is faster"
        )
    return f"{told}, {reached / link:.0%} of {tier.name}'s {format_rate(link)}"


def _lanes(found: Explanation, row: ExplainedRow, numbers: Priced) -> int:
    """How many ranks of the group are in one unit of the tier below its widest one (price.py: lanes); 1 inside one tier."""
    tiers = numbers.cluster.tiers
    widest = next(index for index, tier in enumerate(tiers) if tier.name == row.tier)
    size = tiers[widest - 1].size if widest else None
    axis = row.row.axis or ""
    if size is None or axis in ("pp", "embedding", "mirror"):
        return 1
    mesh = Mesh(found.layout, kv_heads=numbers.ledger.model.attention.num_kv_heads)
    return sum(rank // size == found.rank // size for rank in mesh.group_of(found.rank, axis))


PAYLOADS = {
    "all_reduce": "the tensor that each rank passes in", "all_to_all": "the tensor that each rank passes in",
    "send": "the tensor that is sent", "recv": "the tensor that is received", "broadcast": "the tensor that is sent",
    "all_gather": "the full tensor, which each rank has afterwards",
    "reduce_scatter": "the full tensor, of which each rank passes its summand in",
}  # fmt: skip


def _group(found: Explanation, row: ExplainedRow, numbers: Priced) -> str:
    axis = row.row.axis or ""
    mesh = Mesh(found.layout, kv_heads=numbers.ledger.model.attention.num_kv_heads)
    if axis in ("pp", "embedding", "mirror"):
        return f"{row.ranks} of the ranks {in_runs(list(mesh.group_of(found.rank, 'pp')))}"
    return f"{row.ranks} ranks, {in_runs(list(mesh.group_of(found.rank, axis)))}"


def _hidden(row: Row, numbers: Priced) -> str:
    stack = numbers.ledger.stack
    if row.hidden_by:
        return f"behind {row.hidden_by}, as far as that takes" if stack.hides_context_parallel else f"not by stack {stack.name}"
    return ""


def _compute(found: Explanation, row: ExplainedRow, numbers: Priced) -> list[Fact]:
    device, precision = numbers.cluster.device, numbers.ledger.precision
    moved = row.row.read_bytes + row.row.write_bytes
    peak = device.peak(precision.compute if "matmul" in row.row.kind else "bf16") or device.peak("float16") or 0.0
    facts = [("operation", row.row.kind.replace("_", " "))]
    if row.flops:
        reached = row.flops / row.each_s
        facts.append(("flops", f"{row.flops:,.0f} = {_flops(found, row, numbers)}"))
        facts.append(("rate", f"{format_count(reached)} flops/s, {reached / peak:.0%} of the dense peak of {device.name}"))
    rate, most = moved / row.each_s, device.hbm_bandwidth_bytes_per_s
    facts.append(("memory traffic", f"{format_memory(moved)}: reads {format_memory(row.row.read_bytes)}, writes"
                  f" {format_memory(row.row.write_bytes)}; {format_rate(rate)}, {rate / most:.0%} of what the"
                  f" memory of {device.name} gives"))  # fmt: skip
    facts.append(("time", f"{format_seconds(row.each_s)}, by {_line(compute, row.row.kind)}"))
    if row.row.saved_bytes:
        facts.append(("kept", f"{format_memory(row.row.saved_bytes)} for the backward, in stack {numbers.ledger.stack.name}"))
    return facts


def _flops(found: Explanation, row: ExplainedRow, numbers: Priced) -> str:
    ledger = numbers.ledger
    if row.row.shape is not None:
        batch, m, n, k = row.row.shape
        return f"2 x {batch:,} x {m:,.10g} x {n:,} x {k:,}; {_said(Writer.matmul)}"
    place = Mesh(found.layout).place(found.rank, "ring")
    pairs = ledger.layout.mb * attended_pairs(ledger, place, window_of(ledger, row.part, row.layers))
    heads, width = ledger.sizes.heads // ledger.layout.ulysses, attention_core.head_dim(ledger.sizes)
    v_width = ledger.model.attention.v_head_dim
    return f"{_said(attention_core._core_row)} Here pairs = {pairs:,.0f}, N = {heads}, H = {width}, Hv = {v_width}."


def _said(function: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split()).replace("``", "")


def _line(module: ModuleType, operation: str) -> str:
    """The line of a module's docstring that has the formula of ``operation``."""
    word = PRICE_LINES.get(operation, operation)
    found = next((line for line in (module.__doc__ or "").splitlines() if line.split()[:1] == [word]), "")
    return found.strip().removeprefix(word).strip()


def _calls(found: Explanation, row: ExplainedRow) -> str:
    total = row.times * row.each_s
    return f"{row.times:,} a step, {format_seconds(total)} together ({found.micro_batches:,} micro-batches)"
