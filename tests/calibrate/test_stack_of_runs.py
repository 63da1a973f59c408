"""A stack fitted to runs: made-up sites whose constants are known are found again, and what is written can be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from meshwright.calibrate.runs import fit_runs, fit_site
from meshwright.calibrate.steps import FREE, PRIORS, Steps, constants_at, position_of
from meshwright.errors import InputError
from meshwright.estimate import estimate
from meshwright.spec.efficiency import Efficiency, fitted
from meshwright.spec.layout import parse_layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.load_model import resolve_model
from meshwright.spec.load_stack import load_stack, resolve_stack, stack_text
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import Training
from meshwright.validate.question import Question, question_of
from meshwright.validate.runs import Run

LAYOUTS = ("tp=8 sp dp=1x8 zero=1 mb=1", "tp=4 sp pp=2 dp=1x8 zero=1 mb=1", "tp=2 sp pp=4 dp=1x8 zero=1 mb=2", "dp=1x64 zero=3 mb=1",
           "tp=8 sp pp=2 dp=1x4 zero=1 mb=2", "tp=4 sp dp=1x16 zero=1 mb=1")  # fmt: skip
MODEL, CLUSTER, WORKLOAD = "llama-3.1-70b", "h100-sxm", Training(seq=8192, batch=128)
SLOW_SITE = replace(fitted(), matmul_hopper=0.9 * fitted().matmul_hopper, tp=1.3 * fitted().tp)
"""A site whose clocks are a tenth lower and whose tp collectives take a third longer."""


def seconds(layout: str, constants: Efficiency, level: float = 1.0) -> float:
    stack = replace(STACKS["megatron"], efficiency=constants, level=level)
    found = estimate(resolve_model(MODEL), resolve_cluster(CLUSTER), WORKLOAD, parse_layout(layout, 64), stack, closed_form=True)
    return found.step_s


def run_of(index: int, constants: Efficiency, level: float = 1.0) -> dict[str, str]:
    layout = LAYOUTS[index]
    return {
        "id": f"r{index}", "model": MODEL, "cluster": CLUSTER, "gpus": "64", "layout": layout, "seq": "8192", "batch": "128",
        "stack": "megatron", "step_s": repr(seconds(layout, constants, level)),
    }  # fmt: skip


def question(index: int, constants: Efficiency = SLOW_SITE, level: float = 1.0) -> Question:
    return question_of(Run(run_of(index, constants, level)))


def table(folder: Path, rows: list[dict[str, str]]) -> Path:
    path = folder / "runs.csv"
    path.write_text("\n".join([",".join(rows[0]), *(",".join(row.values()) for row in rows)]) + "\n")
    return path


def test_positions_are_distances_from_the_priors() -> None:
    x = position_of(fitted())
    assert len(x) == len(FREE) == len(PRIORS)
    there = constants_at(x)
    assert all(getattr(there, name) == pytest.approx(getattr(fitted(), name), rel=1e-12) for name in FREE)


def test_three_runs_tell_the_others() -> None:
    """The site is 5 to 12 % slower than the catalog says; after three runs the other three are known within 4 %."""
    site = fit_site([question(index) for index in (0, 1, 3)])
    rest = Steps([question(index) for index in (2, 4, 5)])
    before, after = rest.log_s(position_of(fitted())) - rest.measured, rest.log_s(site.x) + site.level - rest.measured
    assert np.abs(before).min() > 0.05
    assert np.abs(after).max() < 0.04 and np.abs(after).mean() < 0.3 * np.abs(before).mean()


def test_runs_make_the_next_one_surer() -> None:
    jacobian = Steps([question(4)]).jacobian(position_of(fitted()))
    spreads = [float(fit_site([question(i) for i in range(count)]).spread(jacobian, 0.05)[0]) for count in (1, 2, 4)]
    assert spreads[0] > spreads[1] > spreads[2] > 0.05


def test_a_level_is_told_from_constants() -> None:
    """A site that is slower in everything: no run tells that from all constants together, but the next run is right."""
    site = fit_site([question(index, fitted(), level=1.1) for index in (0, 1, 2, 3)])
    rest = Steps([question(5, fitted(), level=1.1)])
    assert site.level > 0
    assert float((rest.log_s(site.x) + site.level - rest.measured)[0]) == pytest.approx(0.0, abs=0.02)


def test_what_is_written_can_be_used(tmp_path: Path) -> None:
    found = fit_runs(table(tmp_path, [run_of(index, SLOW_SITE) for index in range(5)]), "mine")
    assert found.after < 0.3 * found.before and found.left_out is not None and found.left_out < found.before
    assert {name for name, _, _ in found.changed} >= {"matmul_hopper", "tp"}
    path = tmp_path / "mine.toml"
    path.write_text(found.text)
    stack = load_stack(path)
    assert (stack.name, stack.framework, stack.said) == ("mine", "megatron", str(path))
    layout = parse_layout(LAYOUTS[5], 64)
    said = estimate(resolve_model(MODEL), resolve_cluster(CLUSTER), WORKLOAD, layout, stack, closed_form=True)
    plain = estimate(resolve_model(MODEL), resolve_cluster(CLUSTER), WORKLOAD, layout, STACKS["megatron"], closed_form=True)
    truth = seconds(LAYOUTS[5], SLOW_SITE)
    assert abs(said.step_s / truth - 1) < 0.02 < abs(plain.step_s / truth - 1)
    assert said.step_s_high / said.step_s_low < plain.step_s_high / plain.step_s_low
    assert stack_text(replace(stack, source=found.stack.source)) == found.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("base = 'nothing'", "base"), ("level = -1", "level"), ("level = 1e-300", "level"),
        ("[efficiency]\nmemory = 1e-300", "efficiency.memory"), ("spread = 'wide'", "spread"), ("[efficiency]\ntp = nan", "efficiency.tp"),
        ("[efficiency]\nspeed = 1.0", "efficiency.speed"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_stack_file(tmp_path: Path, change: str, said: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(change)
    with pytest.raises(InputError) as error:
        load_stack(path)
    assert said in {mistake.key for mistake in error.value.mistakes}


def test_a_stack_is_a_name_or_a_file() -> None:
    assert resolve_stack("fsdp") is STACKS["fsdp"]
    for text in ("megatorn", "none.toml"):
        with pytest.raises(InputError):
            resolve_stack(text)


def test_runs_of_two_frameworks_are_not_one_stack(tmp_path: Path) -> None:
    rows = [run_of(0, SLOW_SITE), {**run_of(1, SLOW_SITE), "stack": "torchtitan"}]
    with pytest.raises(InputError, match="several frameworks"):
        fit_runs(table(tmp_path, rows), "mine")


def test_a_table_without_a_usable_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no run to fit"):
        fit_runs(table(tmp_path, [{**run_of(0, SLOW_SITE), "gpus": "7"}]), "mine")


def test_times_in_another_unit_are_refused_together(tmp_path: Path) -> None:
    """Milliseconds would be fitted to constants that no --stack accepts."""
    rows = [run_of(index, SLOW_SITE) for index in range(4)]
    for index in (1, 3):
        rows[index]["step_s"] = repr(1000 * float(rows[index]["step_s"]))
    with pytest.raises(InputError, match="is it in seconds") as error:
        fit_runs(table(tmp_path, rows), "mine")
    assert [mistake.key for mistake in error.value.mistakes] == ["step time of r1", "step time of r3"]


def test_runs_that_contradict_each_other_are_no_stack(tmp_path: Path) -> None:
    rows = [run_of(index, SLOW_SITE) for index in range(4)]
    for row, factor in zip(rows, (0.12, 8.0, 0.12, 8.0), strict=True):
        row["step_s"] = repr(factor * float(row["step_s"]))
    with pytest.raises(InputError, match="contradict each other"):
        fit_runs(table(tmp_path, rows), "mine")
