"""Traces of real jobs, and what those who published them say of them.

dlrm-8-ranks: one step of a recommendation model on 8 GPUs, from Holistic Trace Analysis' test data. kineto: ResNet-50 with none and with
four loader workers, from the samples of PyTorch's profiler plugin; a decode step of an SGLang server. bytedance-straggler: two jobs of
arXiv 2505.05713, with the published answers beside them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.judge import diagnose, evidence_of
from meshwright.diagnose.slow.profile import Profile, profile_of
from meshwright.diagnose.slow.summary import step_json
from meshwright.diagnose.slow.what_if import WhatIf, what_ifs
from shared_data import shared

TRACES = "data/traces"


def profile(path: str) -> Profile:
    found = profile_of(evidence_of([shared(f"{TRACES}/{path}")])[0])
    assert found is not None
    return found


@pytest.fixture(scope="module")
def dlrm() -> Profile:
    return profile("dlrm-8-ranks/dlrm_kineto.tar.gz")


def test_dlrm_waits_and_hardly_transfers(dlrm: Profile) -> None:
    waited_s = sum(meeting.waited_s for meeting in dlrm.collectives)
    assert dlrm.communicating_s == pytest.approx(48.5e-3, abs=0.05e-3)  # both published to one digit
    assert dlrm.communicating_s - waited_s == pytest.approx(1.7e-3, abs=0.05e-3)
    assert waited_s / dlrm.communicating_s == pytest.approx(0.964, abs=5e-4)


def test_dlrm_late_ranks(dlrm: Profile) -> None:
    assert [meeting.late_rank for meeting in dlrm.collectives] == [7, 7, 7, 7, 7, 5, 5, 4]
    assert all(meeting.whole and meeting.ranks == tuple(range(8)) for meeting in dlrm.collectives)


def test_dlrm_ops_are_those_that_were_called_not_what_the_kernels_are_named_after(dlrm: Profile) -> None:
    assert [meeting.op for meeting in dlrm.collectives] == ["all_to_all"] * 4 + ["all_reduce", "all_to_all", "all_reduce", "all_reduce"]
    assert [meeting.payload_bytes for meeting in dlrm.collectives][:2] == [6144 * 4, 24 * 8]


def test_dlrm_headline_names_the_rank_that_came_last() -> None:
    diagnosis = diagnose([shared(f"{TRACES}/dlrm-8-ranks/dlrm_kineto.tar.gz")])
    assert (diagnosis.findings[0].code, diagnosis.findings[0].ranks, diagnosis.verdict) == ("straggler", (7,), "fault")


def test_dlrm_idling_for_data_is_not_put_on_the_host(dlrm: Profile) -> None:
    """The devices idle for 58.2 % of the time, partly since the loader is slow: the finding tells the host's share alone."""
    (finding,) = (each for each in diagnose([shared(f"{TRACES}/dlrm-8-ranks/dlrm_kineto.tar.gz")]).findings if each.code == "host-bound")
    host = [split.idle_s["host"] / split.window_s for split in dlrm.splits]
    assert all(split.idle_share > share for split, share in zip(dlrm.splits, host, strict=True))
    assert f"{sum(host) / len(host):.1%}" in finding.title


@pytest.mark.parametrize(("workers", "share"), [(0, 0.244), (4, 0.009)])
def test_resnet_data_loading(workers: int, share: float) -> None:
    (split,) = profile(f"kineto/resnet50_num_workers_{workers}.json.gz").splits
    assert split.loading_s / split.stepped_s == pytest.approx(share, abs=5e-4)
    assert split.steps == 6


def test_resnet_loader_is_named_as_the_cause_only_where_it_is() -> None:
    without, four = (diagnose([shared(f"{TRACES}/kineto/resnet50_num_workers_{count}.json.gz")]).findings for count in (0, 4))
    assert without[0].code == "data-loading" and "24.4%" in without[0].title
    assert "data-loading" not in {finding.code for finding in four}


def test_decode_step_is_host_bound() -> None:
    (split,) = profile("kineto/sglang_Qwen3-8B_decode.json.gz").splits
    assert split.idle_share == pytest.approx(0.979, abs=5e-4)
    finding = diagnose([shared(f"{TRACES}/kineto/sglang_Qwen3-8B_decode.json.gz")]).findings[0]
    assert finding.code == "host-bound" and "97.9%" in finding.title
    assert any("hipMemcpyWithStream" in sentence for sentence in finding.evidence)


@pytest.mark.parametrize(
    "path", ["dlrm-8-ranks/dlrm_kineto.tar.gz", "kineto/resnet50_num_workers_0.json.gz", "kineto/sglang_Qwen3-8B_decode.json.gz"]
)
def test_every_moment_of_the_window_is_counted_once(path: str) -> None:
    for split in profile(path).splits:
        parts = sum(split.compute_s.values()) + sum(split.exposed_s.values()) + sum(split.idle_s.values())
        assert parts == pytest.approx(split.window_s, rel=1e-9)  # sums of some ten thousand microseconds


def published(trial: str) -> dict[str, Any]:
    folder = shared(f"{TRACES}/bytedance-straggler/result-{trial}.json").parent
    return {name: json.loads((folder / f"{name}-{trial}.json").read_text(encoding="utf-8")) for name in ("result", "mw", "ms")}


@pytest.fixture(scope="module", params=["AR", "ST"])
def job(request: pytest.FixtureRequest) -> tuple[str, Path, WhatIf]:
    pytest.importorskip("pyarrow", reason="the traces are parquet files")
    path = shared(f"{TRACES}/bytedance-straggler/trace-{request.param}.parquet")
    evidence, _ = evidence_of([path])
    (found,) = evidence.derived(what_ifs)
    return request.param, path, found


def test_slowdown_of_a_published_job(job: tuple[str, Path, WhatIf]) -> None:
    trial, _, found = job
    answer = published(trial)
    # Nothing but the order of a sum and the rule for two operations that begin at the same moment is left open by the paper.
    assert found.slowdown == pytest.approx(answer["result"]["blocking_slowdown"], rel=1e-3)
    assert found.ideal_s == pytest.approx(answer["mw"]["tideal"], rel=1e-3)
    assert found.played_s == pytest.approx(answer["mw"]["tori"], rel=1e-3)
    traced = answer["result"]["step_t_base"].values()
    assert found.traced_s == pytest.approx(sum(traced) / len(traced), rel=1e-6)


def test_shares_of_a_published_job(job: tuple[str, Path, WhatIf]) -> None:
    """Their M_W and M_S: what of the loss goes away with the slowest worker, and with the last stage."""
    trial, _, found = job
    answer = published(trial)
    assert max(found.workers.values()) == pytest.approx(answer["mw"]["Mw"], abs=0.002)
    assert found.stages[max(found.stages)] == pytest.approx(answer["ms"]["Ms"], abs=0.002)


def test_cause_of_a_published_job(job: tuple[str, Path, WhatIf]) -> None:
    trial, path, _ = job
    headline, *others = diagnose([path]).findings
    if trial == "AR":
        assert (headline.code, headline.ranks) == ("straggler", (0,))
        assert "pipeline stage 0, data rank 0" in headline.title and "1.973" in headline.title
    else:
        assert (headline.code, headline.ranks) == ("heavy-stage", (6, 7))
        assert "last pipeline stage" in headline.title and "1.179" in headline.title
    assert others == []


def test_the_culprit_waits_least(job: tuple[str, Path, WhatIf]) -> None:
    trial, _, found = job
    least = min(found.waiting, key=lambda worker: found.waiting[worker])
    assert least == (0, 0) if trial == "AR" else least[1] == 3


def test_nothing_is_derived_twice() -> None:
    evidence = Evidence()
    assert evidence.derived(profile_of) is None and evidence.derived(what_ifs) == ()


def test_json_has_the_figures_of_the_headline() -> None:
    evidence, _ = evidence_of([shared(f"{TRACES}/dlrm-8-ranks/dlrm_kineto.tar.gz")])
    step = step_json(evidence)["step"]
    assert step["late_ranks"] == [7, 7, 7, 7, 7, 5, 5, 4]
    assert step["waiting_s"] / step["communicating_s"] == pytest.approx(0.964, abs=5e-4)
    assert step["transfer_s"] + step["waiting_s"] == pytest.approx(step["communicating_s"])
    for rank in step["ranks"]:
        parts = sum(rank["compute_s"].values()) + rank["exposed_s"] + sum(rank["idle_s"].values())
        assert parts == pytest.approx(rank["window_s"])
