"""Many columns as one: layouts of different structure whose step has the same formula.

Once blocks and units are priced, the step's formula depends on the pipeline alone (step_time.py): sp, cp kind, ZeRO stage and
recompute policy are in the numbers. What fits of all these columns is therefore timed together, which makes few long
columns of many short ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.boundaries import alike
from meshwright.ledger.build import Ledger
from meshwright.ledger.stages import LayerBlock, pipeline
from meshwright.priced import Numbers, Priced
from meshwright.search.space import DEGREES, Column

Part = tuple[Priced, Any]
"""A priced column and the index of the layouts that are meant."""


def join(parts: list[Part]) -> Priced:
    """One priced column of all parts, which share pipeline degree, schedule, chunks and stages.

    It answers what step_time.py asks; it has no sizes, since its parts differ in them. Its ZeRO stage is the highest: in the
    numbers of the others, what that one sends in each micro-batch takes no time.
    """
    wide = parts[0][0].ledger
    layout = wide.layout
    columns = [(priced.ledger.layout, index) for priced, index in parts]
    degrees: dict[str, Any] = {name: np.concatenate([getattr(each, name)[index] for each, index in columns]) for name in DEGREES}
    column = Column(
        **degrees, pp=layout.pp, sp=layout.sp, cp_kind=layout.cp_kind, schedule=layout.schedule,
        virtual_stages=layout.virtual_stages, stages=layout.stages, order=layout.order,
        zero=max(each.zero for each, _ in columns),
    )  # fmt: skip
    cut = pipeline(wide.model, layout.schedule, layout.pp, layout.virtual_stages, layout.stages, "none", None)
    ledger = Ledger(wide.model, wide.workload, column, wide.stack, wide.precision, None, cut)  # type: ignore[arg-type]
    joined = Priced(ledger, parts[0][0].cluster, parts[0][0].fabric)
    _join_blocks(joined, parts)
    _join_units(joined, parts)
    return joined


def _join_blocks(joined: Priced, parts: list[Part]) -> None:
    model, layout = joined.ledger.model, joined.ledger.layout
    blocks = joined.blocks
    for kind in model.kinds:
        each = [LayerBlock(kind, priced.ledger.layout.recompute) for priced, _ in parts]
        blocks[LayerBlock(kind, "none")] = _joined(
            [_table(priced, priced.blocks, block, priced.layer(block)) for (priced, _), block in zip(parts, each, strict=True)], parts
        )
    for name in ("embedding", "head", "mtp") if model.mtp_layers else ("embedding", "head"):
        blocks[name] = _joined([_table(priced, priced.blocks, name, getattr(priced, name)) for priced, _ in parts], parts)
    blocks["scalars"] = _joined_numbers([(priced.scalars_s, index) for priced, index in parts])
    if layout.pp > 1:
        between = [(priced.boundary_s, index) for priced, index in parts]
        if alike(joined):
            blocks["boundary"] = _joined_numbers(between)
        else:
            blocks["boundary"] = np.concatenate([value[:, index] for value, index in between], axis=1)


def _join_units(joined: Priced, parts: list[Part]) -> None:
    ledger, units = joined.ledger, joined.units
    for kind in ledger.model.kinds:
        units[kind] = _joined([_table(priced, priced.units, kind, priced.layer_unit(kind)) for priced, _ in parts], parts)
    for index, _ in ledger.pipeline.representatives:
        stage = ledger.stage(index)
        ends = stage.first, stage.last
        if any(ends) and ends not in units:
            units[ends] = _joined([_table(priced, priced.units, ends, priced.root(*ends)) for priced, _ in parts], parts)
    units["one link"] = _joined_numbers([(priced.one_link, index) for priced, index in parts])
    if ledger.model.mtp_layers:
        units["mtp"] = _joined([_table(priced, priced.units, "mtp", priced.mtp_unit) for priced, _ in parts], parts)


@dataclass(frozen=True, slots=True)
class Table:
    """All numbers of one block or unit as the rows of one array, [numbers, layouts], so that layouts are picked in one go.

    ``same`` has for each number the one value that all layouts have, or None.
    """

    like: Numbers
    rows: npt.NDArray[np.float64]
    same: tuple[float | None, ...]


def _table(priced: Priced, cache: dict[object, Any], key: object, numbers: Numbers) -> Table:
    """Made once for the blocks and units that columns share."""
    name = ("table", key)
    if name not in cache:
        leaves = list(_leaves(numbers))
        rows = np.empty((len(leaves), len(priced.ledger.layout)))
        for row, leaf in zip(rows, leaves, strict=True):
            row[:] = leaf
        cache[name] = Table(numbers, rows, tuple(None if isinstance(leaf, np.ndarray) else float(leaf) for leaf in leaves))
    found: Table = cache[name]
    return found


def _leaves(numbers: Numbers) -> Iterator[Any]:
    for field in fields(numbers):  # type: ignore[arg-type]
        value = getattr(numbers, field.name)
        if isinstance(value, Numbers):
            yield from _leaves(value)
        else:
            yield value


def _joined(tables: list[Table], parts: list[Part]) -> Numbers:
    """The numbers of several columns, each at its index, one after the other; what is the same everywhere stays one number, which
    spares whatever is computed with it (what nothing sends is 0)."""
    rows = np.concatenate([table.rows.take(index, axis=1) for table, (_, index) in zip(tables, parts, strict=True)], axis=1)
    same = [values[0] if len(set(values)) == 1 else None for values in zip(*(table.same for table in tables), strict=True)]
    return _rebuilt(tables[0].like, iter([row if value is None else value for row, value in zip(rows, same, strict=True)]))


def _rebuilt(like: Numbers, rows: Iterator[Any]) -> Numbers:
    """Of the same classes as ``like``, with the next rows for its numbers."""
    values = (getattr(like, field.name) for field in fields(like))  # type: ignore[arg-type]
    return type(like)(*(_rebuilt(value, rows) if isinstance(value, Numbers) else next(rows) for value in values))


def _joined_numbers(each: list[tuple[Any, Any]]) -> Any:
    return np.concatenate([value[index] if isinstance(value, np.ndarray) else np.full(len(index), value) for value, index in each])
