"""The table in letters, held against the table in numbers: its formulas at the sizes of real layouts give those sums."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from jobs import job
from meshwright.api import numbers_of
from meshwright.collectives.volume import wire_bytes
from meshwright.explain.by_axis import explain_by_axis
from meshwright.explain.letters import formula, terms_of, value_of
from meshwright.explain.symbolic import LETTERS, explain_symbolically, letters_of

CASES = {
    "dp zero=0": ("llama-3.1-70b", "tp=8 sp cp=2 dp=1x4 mb=2"),
    "dp zero=1": ("llama-3.1-70b", "tp=4 sp dp=1x16 zero=1 mb=1"),
    "dp zero=2": ("llama-3.1-70b", "tp=4 sp dp=1x16 zero=2 mb=2"),
    "dp zero=3": ("llama-3.1-70b", "tp=8 sp dp=1x8 zero=3 mb=1"),
    "dp zero=3:keep": ("llama-3.1-70b", "dp=1x64 zero=3:keep mb=1"),
    "tp": ("llama-3.1-70b", "tp=8 dp=1x8 mb=2"),
    "tp sp": ("llama-3.1-70b", "tp=8 sp cp=2 dp=1x8 mb=1"),
    "cp:zigzag": ("llama-3.1-70b", "tp=4 sp cp=4 dp=1x4 mb=1"),
    "cp:ulysses": ("llama-3.1-70b", "tp=2 sp cp=4:ulysses dp=1x4 mb=2"),
    "cp:allgather": ("llama-3.1-70b", "tp=2 sp cp=4:allgather dp=1x4 mb=1"),
    "vocab": ("llama-3.1-70b", "tp=8 cp=2 dp=1x8 mb=1"),
    "vocab sp": ("llama-3.1-70b", "tp=8 sp dp=1x8 mb=1"),
    "ep": ("deepseek-v3", "tp=2 sp ep=16 etp=1 dp=1x16 mb=1"),
    "experts' dp zero=0": ("deepseek-v3", "tp=2 sp ep=8 etp=1 dp=1x16 mb=1"),
    "experts' dp zero=3": ("deepseek-v3", "tp=4 sp ep=8 etp=1 dp=1x16 zero=3 mb=1"),
    "mla tp": ("deepseek-v3", "tp=4 dp=1x16 ep=4 mb=1"),
    "mla tp sp": ("deepseek-v3", "tp=4 sp dp=1x16 ep=4 etp=1 mb=1"),
    "mla cp:zigzag": ("deepseek-v3", "tp=2 sp cp=4 dp=1x8 ep=4 etp=1 mb=1"),
    "gpt tp sp": ("gpt3-175b", "tp=8 sp dp=1x8 mb=1"),
    "experts' ep": ("mixtral-8x7b", "tp=2 sp ep=8 etp=1 dp=1x8 mb=1"),
}  # fmt: skip
"""A line of the table (after a word of what is special) -> the model and layout to compare with."""

LINE_OF = {"tp sp": "sp", "vocab sp": "vocab"}


def sizes(priced):
    """Every letter's size in one layout; P by counting what the ledger's units hold."""
    ledger = priced.ledger
    layout, kinds = ledger.layout, ledger.model.layers
    units = [ledger.layer_unit(kind) for kind in kinds]
    root = ledger.root(True, True)
    zero = layout.zero > 0
    return {
        **letters_of(ledger.model), "L": len(kinds), "m": ledger.micro_batches, "mb": layout.mb, "S": ledger.workload.seq,
        "tp": layout.tp, "cp": layout.cp, "pp": 1, "dp_shard": layout.dp_shard, "ep": layout.ep,
        "Pl": sum(unit.parts[0].numel for unit in units), "Pe": sum(unit.parts[1].numel for unit in units if len(unit.parts) > 1),
        "Pr": root.numel, "Pwl": sum(unit.partial_numel for unit in units) * (1 if not zero else 0), "Pwr": root.partial_numel,
    }  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_formulas_at_real_sizes_are_the_numbers_of_the_ledger(case):
    model, layout = CASES[case]
    seq = 2048 if model == "gpt3-175b" else 8192
    asked = job(model, layout, seq=seq)
    asked = replace(asked, model=replace(asked.model, mtp_layers=0))
    priced = numbers_of(asked)
    axis = case.split(maxsplit=1)[1] if case.startswith(("experts'", "mla ", "gpt ")) else case
    symbolic = next(line for line in explain_symbolically(asked.model).lines if line.axis == axis)
    line = explain_by_axis(priced).line(LINE_OF.get(axis, axis.partition(" ")[0].partition(":")[0]))
    letters = sizes(priced)

    calls, payload, wire = Counter(), Fraction(0), Fraction(0)
    for each in symbolic.collectives.values():
        calls[each.op] += int(value_of(each.calls, letters))
        own = value_of(each.payload_bytes, letters)
        payload += own
        wire += wire_bytes(each.op, own, int(value_of(each.ranks, letters)))
    assert calls == line.collectives
    assert payload == line.payload_bytes
    assert round(wire) == line.wire_bytes


def test_the_textbook_formulas():
    """Of a dense model: 4 all_reduces of 2 T D bytes a layer (arXiv 1909.08053, section 3); K and V in bf16 passed cp-1 times in
    each direction, and 4-byte gradients cp times back (arXiv 2310.01889); 2 Psi and 3 Psi (arXiv 1910.02054, section 7)."""
    lines = {line.axis: list(line.collectives.values()) for line in explain_symbolically(job("llama-3.1-70b", "dp=1x8").model).lines}
    (tp,) = lines["tp"]
    assert (tp.op, formula(tp.calls), formula(tp.payload_bytes), tp.wire_per_payload) == (
        "all_reduce", "4 m L/pp", "8 m T D L/pp", "2 (n-1)/n",
    )  # fmt: skip
    send = lines["cp:zigzag"][0]
    assert (send.op, formula(send.payload_bytes), send.wire_per_payload) == ("send", "8 m T H K L (2 cp-1)/(pp tp)", "1")
    assert [(each.op, formula(each.payload_bytes)) for each in lines["dp zero=0"]] == [("all_reduce", "2 (Pl+Pr)")]
    assert [(each.op, formula(each.payload_bytes)) for each in lines["dp zero=3"]] == [
        ("all_gather", "2 m (2 Pl+Pr)"), ("reduce_scatter", "4 m (Pl+Pr)"),
    ]  # fmt: skip


def test_a_dense_model_has_no_experts_line():
    dense = {line.axis for line in explain_symbolically(job("llama-3.1-70b", "dp=1x8").model).lines}
    experts = {line.axis for line in explain_symbolically(job("deepseek-v3", "dp=1x8").model).lines}
    assert experts - dense == {"ep"}


def test_every_letter_of_a_formula_is_explained():
    for model in ("llama-3.1-70b", "deepseek-v3", "mixtral-8x7b", "gpt2-xl", "gpt-oss-120b"):
        asked = job(model, "dp=1x8").model
        known = {*letters_of(asked), *LETTERS, "Pwl", "Pwr", "mb", "S", "tp", "cp", "pp", "dp_shard", "ep"}
        for line in explain_symbolically(asked).lines:
            for each in line.collectives.values():
                for number in (each.calls, each.payload_bytes):
                    assert {letter for term in terms_of(number) for letter, _ in term} <= known, (line.axis, formula(number))


def test_the_table_leaves_the_ledger_of_the_model_alone():
    """Stand-in models must not turn up in what is cached for the real one."""
    asked = job("llama-3.1-70b", "tp=8 sp dp=1x8 zero=3 mb=1")
    before = explain_by_axis(numbers_of(asked)).as_json()
    explain_symbolically(asked.model)
    after = explain_by_axis(numbers_of(asked)).as_json()
    assert before == after
    assert all(type(line["payload_bytes"]) is int for line in after["axes"])
