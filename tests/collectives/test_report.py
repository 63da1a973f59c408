"""The answer of ``meshwright collectives``: stable keys, every algorithm, and a fault is not passed over."""

import json
from dataclasses import replace

import pytest

from meshwright.collectives import report as module
from meshwright.collectives.algorithms import OPS, algorithms, ring
from meshwright.collectives.execute import MAX_PAYLOAD_BYTES, MAX_RANKS, execute, padded_bytes
from meshwright.collectives.price import collective_s
from meshwright.collectives.report import MAX_PRICED_RANKS, PRICED, build, report
from meshwright.collectives.step_price import packed_group
from meshwright.errors import InputError
from meshwright.spec.load_cluster import resolve_cluster

H100 = resolve_cluster("h100-sxm")
KEYS = ["name", "steps", "bytes_per_rank", "time_s", "executed", "correct", "bytes_counted"]


@pytest.mark.parametrize("op", OPS)
def test_answer_has_the_documented_keys(op):
    answer = json.loads(json.dumps(report(op, 1 << 27, 64, H100).as_json()))
    assert {"op", "ranks", "size_bytes", "algorithms", "best", "crossovers"} <= set(answer)
    assert all(list(row) == KEYS for row in answer["algorithms"])
    assert answer["best"] in [row["name"] for row in answer["algorithms"]]
    assert all(list(change) == ["from", "to", "size_bytes"] for change in answer["crossovers"])


def test_best_is_the_fastest_row_and_changes_at_the_crossovers():
    for size in (1 << 10, 1 << 20, 1 << 30):
        found = report("all_reduce", size, 64, H100)
        assert found.best == min(found.algorithms, key=lambda row: row.time_s).name
    after = [change.to for change in found.crossovers]
    assert after[-1] == found.best
    assert len(after) >= 2


def test_switch_is_listed_where_it_reduces():
    assert report("all_reduce", 1 << 30, 8, H100).best == "in_switch"
    assert "in_switch" not in [row.name for row in report("all_reduce", 1 << 30, 4, H100).algorithms]


def test_without_a_cluster_there_are_counts_and_no_times():
    found = report("all_gather", 1 << 20, 5)
    assert {row.time_s for row in found.algorithms} == {None}
    assert (found.best, found.priced_s, found.crossovers, found.plot) == ("", None, (), ())
    assert all(row.correct for row in found.algorithms)


def test_one_rank_has_no_fastest():
    found = report("all_reduce", 1 << 20, 1, H100)
    assert (found.best, found.priced_s) == ("", 0.0)
    assert {row.time_s for row in found.algorithms} == {0.0}


def test_an_algorithm_that_is_wrong_is_not_sound(monkeypatch):
    """A list that forgets a chunk, and a formula that forgets a factor."""
    good = algorithms("all_gather", 4)[1]
    lossy = replace(good, name="lossy", build=lambda n: ring.all_gather(n + 1))
    cheap = replace(good, name="cheap", wire_bytes=lambda m, n: m / n)
    monkeypatch.setattr(module, "algorithms", lambda *args: (good, lossy, cheap))
    monkeypatch.setattr(module, "verify", lambda steps: [] if steps.ranks == 4 else ["lost"])
    rows = report("all_gather", 1 << 20, 4).algorithms
    assert [row.sound for row in rows] == [True, False, False]


@pytest.mark.parametrize(("op", "ranks", "key"), [("broadcast", 4, "OP"), ("all_reduce", MAX_PRICED_RANKS + 1, "--ranks")])
def test_what_cannot_be_listed_is_refused(op, ranks, key):
    with pytest.raises(InputError) as caught:
        report(op, 1, ranks)
    assert [mistake.key for mistake in caught.value.mistakes] == [key]


def test_build_knows_the_names():
    steps, names = build("all_to_all", "rail", 16, H100)
    assert steps is not None and steps.ranks == 16
    assert build("all_to_all", "ring", 16, H100) == (None, names)


def test_payload_is_padded_to_whole_chunks():
    assert padded_bytes(ring.all_reduce(4), 1 << 20) == 1 << 20
    assert padded_bytes(ring.all_reduce(3), 100) == 3 * 5 * 8  # 33.3 bytes a chunk are five float64


def test_running_too_much_on_one_machine_is_refused():
    with pytest.raises(InputError) as caught:
        execute([ring.all_reduce(MAX_RANKS + 1)], MAX_PAYLOAD_BYTES + 1)
    assert [mistake.key for mistake in caught.value.mistakes] == ["--ranks", "--size"]


@pytest.mark.dist
def test_executed_algorithms_are_right_and_send_what_the_formula_says():
    found = report("all_reduce", 1000, 3, None, run=True)  # 1000 bytes do not divide: the padding counts
    assert all(row.executed and row.correct and row.sound for row in found.algorithms)
    assert {row.name: row.bytes_counted for row in found.algorithms}["ring"] == 4 * 42 * 8


@pytest.mark.dist
def test_a_list_that_loses_a_message_is_found_by_running_it():
    steps = ring.all_reduce(3)
    kept = steps.step < steps.num_steps - 1
    columns = {name: getattr(steps, name)[kept] for name in ("step", "sender", "receiver", "chunk", "reduce")}
    right, wrong = execute([steps, replace(steps, **columns)], 960)
    assert right.equal
    assert not wrong.equal


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("ranks", [257, 1024, 100_000, MAX_PRICED_RANKS])
def test_large_groups_are_told_by_formulas(op, ranks):
    """No list is written out; times are the lines of the price, whose fastest is what plans pay."""
    found = report(op, 1 << 27, ranks, H100)
    per_node = 8 if ranks % 8 == 0 else 1
    assert [row.name for row in found.algorithms] == [a.name for a in algorithms(op, ranks, per_node)]
    assert {(row.correct, row.bytes_counted) for row in found.algorithms} == {(None, None)}
    timed = [row for row in found.algorithms if row.time_s is not None]
    assert {row.name for row in timed} == set(PRICED[op])
    assert min(row.time_s for row in timed) == found.priced_s == collective_s(op, 1 << 27, packed_group(ranks, H100), H100.tiers)
    assert found.best == min(timed, key=lambda row: row.time_s).name
    ring = 2 if op == "all_reduce" else 1  # Thakur et al. (2005): (n-1)/n M for each half of an all_reduce
    named = "direct" if op == "all_to_all" else "ring"
    sent = next(row.bytes_per_rank for row in found.algorithms if row.name == named)
    assert sent == pytest.approx(ring * (ranks - 1) / ranks * (1 << 27), rel=1e-12)
    without = report(op, 1 << 27, ranks)
    assert {row.time_s for row in without.algorithms} == {None} and without.best == ""


def test_what_cannot_be_drawn_or_run_says_what_can():
    for ask in (lambda: build("all_reduce", "ring", 257, None), lambda: report("all_reduce", 1, 257, run=True)):
        with pytest.raises(InputError, match="up to 131,072 are priced"):
            ask()
