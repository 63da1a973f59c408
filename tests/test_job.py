"""All inputs of a command, looked up and checked together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.job import Asked, resolve
from meshwright.spec.layout import Layout
from meshwright.spec.plan_file import Plan, save_plan
from meshwright.spec.workload import Prefill, Training

JOB = Asked(subject="llama-3.1-8b", cluster="h100-sxm", layouts=("tp=2 sp dp=1x4 zero=1 mb=1",), seq=4096, batch=64)


def mistakes_of(asked: Asked, **changes):
    with pytest.raises(InputError) as error:
        resolve(replace(asked, **changes))
    return error.value.mistakes


def keys_of(asked: Asked, **changes):
    return [(mistake.file, mistake.key) for mistake in mistakes_of(asked, **changes)]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    job = resolve(replace(JOB, memory_fraction=0.8, precision="bf16", stack="torchtitan"))
    path = tmp_path / "plan.toml"
    save_plan(
        Plan(model=job.model, cluster=job.cluster, workload=job.workload, layout=job.layout, stack="torchtitan", memory_fraction=0.8), path
    )
    return path


def test_a_job_has_everything_resolved():
    job = resolve(JOB)
    assert (job.model.name, job.cluster.name, job.workload) == ("llama-3.1-8b", "h100-sxm", Training(seq=4096, batch=64))
    assert job.layout == Layout(tp=2, sp=True, dp_shard=4, zero=1)
    assert (job.stack.name, job.stated_stack, job.memory_fraction, job.gpus) == ("megatron", False, 0.92, None)
    assert len(job.warnings) == 1


def test_objects_serve_as_well_as_names():
    job = resolve(JOB)
    again = resolve(replace(JOB, subject=job.model, cluster=job.cluster, layouts=(job.layout,)))
    assert again == job


def test_the_gpus_decide_dp_where_it_is_left_out():
    assert resolve(replace(JOB, layouts=("tp=2 sp",), gpus=16)).layout.dp_shard == 8
    assert resolve(replace(JOB, layouts=("tp=2 sp",))).layout.dp_shard == 1


def test_a_clusters_own_number_of_gpus_is_the_default(tmp_path):
    cluster = replace(resolve(JOB).cluster, num_gpus=32)
    assert resolve(replace(JOB, cluster=cluster, layouts=("tp=2 sp",))).layout.dp_shard == 16
    assert resolve(replace(JOB, cluster=cluster)).layout.dp_shard == 4  # what the layout says goes before it


def test_what_was_not_said_of_the_workload_is_assumed_and_told():
    job = resolve(replace(JOB, seq=None, batch=None))
    assert (job.workload.seq, job.workload.batch) == (8192, 512)
    assert [words.split()[0] for words in job.assumed] == ["sequence", "batch"]
    assert resolve(JOB).assumed == ()


def test_a_plan_is_read_and_may_be_overridden(plan):
    saved = resolve(Asked(subject=plan))
    assert saved.layout == resolve(JOB).layout
    assert (saved.workload, saved.memory_fraction, saved.stack.name) == (Training(seq=4096, batch=64, precision="bf16"), 0.8, "torchtitan")
    other = resolve(Asked(subject=str(plan), layouts=("tp=4 sp",), batch=128, memory_fraction=0.9, stack="fsdp", cluster="a100-sxm-80g"))
    assert (other.layout.tp, other.layout.dp_shard) == (4, 2)  # the plan's 8 GPUs
    assert (other.workload.batch, other.workload.seq, other.memory_fraction, other.stack.name) == (128, 4096, 0.9, "fsdp")
    assert other.cluster.name == "a100-sxm-80g"


def test_a_models_own_toml_file_is_no_plan(tmp_path):
    text = 'vocab_size = 1000\nhidden_size = 64\nffn_size = 256\nlayers = ["2 x dense"]\n[attention]\nnum_heads = 4\n'
    (tmp_path / "tiny.toml").write_text(text)
    job = resolve(replace(JOB, subject=tmp_path / "tiny.toml", layouts=("dp=1x2",)))
    assert (job.model.name, job.model.num_layers) == ("tiny", 2)


def test_a_plan_for_serving_is_no_training_step(plan, tmp_path):
    job = resolve(JOB)
    serving = Plan(model=job.model, cluster=job.cluster, workload=Prefill(seq=64, batch=8), layout=job.layout)
    (mistake,) = mistakes_of(Asked(subject=serving))
    assert (mistake.key, mistake.value, mistake.legal) == ("workload.kind", "prefill", "training")


def test_all_mistakes_of_all_inputs_come_together():
    found = mistakes_of(
        JOB, subject="llama-3.1-8q", cluster="h100-smx", layouts=("tp=0 sq", "dp=1x2x3"), precision="bf17", stack="megatorn"
    )
    assert {(mistake.file, mistake.key) for mistake in found} == {
        ("MODEL", "model"), ("catalog", "--cluster"), ("--layout 1", "tp"), ("--layout 1", "sq"), ("--layout 2", "dp"),
        ("command line", "--precision"), ("command line", "--stack"),
    }  # fmt: skip
    assert "did you mean `llama-3.1-8b`?" in {mistake.hint for mistake in found}


def test_numbers_of_the_wrong_kind_are_refused():
    wrong = {"gpus": "64", "seq": 8192.0, "batch": True, "memory_fraction": "most"}
    assert [key for _, key in keys_of(JOB, **wrong)] == ["--gpus", "--seq", "--batch", "--memory-fraction"]
    assert keys_of(JOB, memory_fraction=float("nan")) == [("command line", "--memory-fraction")]
    assert keys_of(JOB, layouts=(8,)) == [("--layout", "8")]


def test_what_is_missing_is_named():
    assert keys_of(Asked(subject="llama-3.1-8b")) == [("command line", "--cluster"), ("command line", "--layout")]
    assert resolve(Asked(subject="llama-3.1-8b"), needs=()).layouts == ()


def test_nothing_is_called_missing_beside_a_plan_that_cannot_be_read(tmp_path):
    (tmp_path / "plan.toml").write_text('layout = "tp=2"\n[workload\n')
    assert keys_of(Asked(subject=tmp_path / "plan.toml")) == [(str(tmp_path / "plan.toml"), "")]
    assert keys_of(Asked(subject=tmp_path / "absent.toml")) == [(str(tmp_path / "absent.toml"), "")]


def test_rules_are_asked_for_every_layout():
    found = mistakes_of(JOB, layouts=("tp=3 dp=1x1", "pp=5 dp=1x1", "dp=1x60"))
    assert [(mistake.file, mistake.key) for mistake in found] == [
        ("--layout 1", "tp"), ("--layout 1", "tp"), ("--layout 1", "tp"), ("--layout 2", "pp"), ("--batch", "batch"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "precision", "key"),
    [("a100-sxm-80g", "fp8", "--precision"), ("h100-sxm", "fp8", None), ("v100-sxm", "bf16", None), ("h100-sxm", "float32", None)],
)
def test_the_device_has_the_units_of_the_precision(cluster, precision, key):
    changed = replace(JOB, cluster=cluster, precision=precision)
    if key is None:
        resolve(changed)
        return
    (mistake,) = mistakes_of(changed)
    assert (mistake.key, mistake.value) == (key, "fp8")
    assert "bf16" in mistake.legal and "fp8" not in mistake.legal


def test_a_device_without_16_bit_units_is_refused():
    cluster = resolve(JOB).cluster
    device = replace(cluster.device, peak_flops_per_s=(("float32", 60e12),))
    (mistake,) = mistakes_of(JOB, cluster=replace(cluster, device=device))
    assert mistake.key == "peak_flops_per_s" and "bf16" in mistake.legal


def test_a_workload_is_found_for_commands_that_need_none():
    job = resolve(
        Asked(subject="llama-3.1-8b", cluster="h100-sxm", layouts=("tp=2 sp cp=4 pp=4:interleaved*2 dp=3x1",)), ("cluster", "layout")
    )
    assert job.workload is None and job.layout.dp_replicate == 3


def test_nothing_is_said_of_a_batch_that_nobody_gave():
    """`ranks` needs no batch: that the stages of a made-up one would idle is no news. What holds for any batch is still told."""
    asked = Asked(subject="llama-3.1-8b", cluster="h100-sxm", layouts=("tp=2 pp=2 dp=2x1",))
    without = resolve(asked, ("cluster", "layout")).warnings[0]
    said = resolve(replace(asked, seq=8192, batch=8), ("cluster", "layout")).warnings[0]
    assert [warning.code for warning in without] == ["sp-off"]
    assert {warning.code for warning in said} == {"sp-off", "few-micro-batches"}


def test_a_batch_in_tokens_is_told_before_anything_is_simulated(meshwright):
    """As many micro-batches would fill the memory of the machine that asks."""
    asked = ("--cluster", "h100-sxm", "--gpus", "8", "--seq", "8192", "--batch", "4194304")
    for words in (("plan", "llama-3.1-8b"), ("estimate", "llama-3.1-8b", "--layout", "tp=8 mb=1")):
        done = meshwright(*words, *asked)
        assert done.exit_code == 2
        assert "`--batch` = 4194304 is not legal" in done.output and "sequences, not tokens: 4M tokens of 8,192 are 512" in done.output
