"""Many columns as one: layouts of different structure whose step has the same formula.

Once blocks and units are priced, the step's formula depends on the pipeline alone (step_time.py): sp, cp kind, ZeRO stage and
recompute policy are in the numbers. What fits of all these columns is therefore timed together, which makes few long
columns of many short ones.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from meshwright.ledger.build import Ledger
from meshwright.ledger.stages import LayerBlock, pipeline
from meshwright.priced import Numbers, Priced
from meshwright.search.space import DEGREES, Column

Part = tuple[Priced, Any]
"""A priced column and the index of the layouts that are meant."""


def join(parts: list[Part]) -> Priced:
    """One priced column of all parts, which share pipeline degree, schedule, chunks and stages.

    It answers what step_time.py asks; it has no sizes, since its parts differ in them.
    """
    wide = parts[0][0].ledger
    layout = wide.layout
    columns = [(priced.ledger.layout, index) for priced, index in parts]
    degrees: dict[str, Any] = {name: np.concatenate([getattr(each, name)[index] for each, index in columns]) for name in DEGREES}
    column = Column(
        **degrees, pp=layout.pp, sp=layout.sp, cp_kind=layout.cp_kind, schedule=layout.schedule,
        virtual_stages=layout.virtual_stages, stages=layout.stages, order=layout.order,
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
        each = [(priced.layer(LayerBlock(kind, priced.ledger.layout.recompute)), index) for priced, index in parts]
        blocks[LayerBlock(kind, "none")] = joined_numbers(each)
    blocks["embedding"] = joined_numbers([(priced.embedding, index) for priced, index in parts])
    blocks["head"] = joined_numbers([(priced.head, index) for priced, index in parts])
    blocks["scalars"] = joined_numbers([(priced.scalars_s, index) for priced, index in parts])
    if layout.pp > 1:
        blocks["boundary"] = joined_numbers([(priced.boundary_s, index) for priced, index in parts])
    if model.mtp_layers:
        blocks["mtp"] = joined_numbers([(priced.mtp, index) for priced, index in parts])


def _join_units(joined: Priced, parts: list[Part]) -> None:
    ledger, units = joined.ledger, joined.units
    for kind in ledger.model.kinds:
        units[kind] = joined_numbers([(priced.layer_unit(kind), index) for priced, index in parts])
    for index, _ in ledger.pipeline.representatives:
        stage = ledger.stage(index)
        ends = stage.first, stage.last
        if any(ends) and ends not in units:
            units[ends] = joined_numbers([(priced.root(*ends), picked) for priced, picked in parts])
    if ledger.model.mtp_layers:
        units["mtp"] = joined_numbers([(priced.mtp_unit, index) for priced, index in parts])


def joined_numbers(each: list[tuple[Any, Any]]) -> Any:
    """Numbers of several columns, each at its index, one after the other; a number that never differs stays one number."""
    first = each[0][0]
    if isinstance(first, Numbers):
        names = [field.name for field in fields(first)]  # type: ignore[arg-type]
        return type(first)(*(joined_numbers([(getattr(numbers, name), index) for numbers, index in each]) for name in names))
    if not any(isinstance(value, np.ndarray) for value, _ in each) and all(value == first for value, _ in each):
        return first
    return np.concatenate([value[index] if isinstance(value, np.ndarray) else np.full(len(index), value) for value, index in each])
