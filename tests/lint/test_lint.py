"""Launch scripts and configs of each framework: what is found, in its own words, and healthy ones in which nothing is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from meshwright.diagnose.finding import Diagnosis
from meshwright.errors import InputError
from meshwright.lint.judge import lint

MEGATRON = """
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 --num-attention-heads 64 \\
  --group-query-attention --num-query-groups 8 --ffn-hidden-size 28672 --swiglu --seq-length 4096 --vocab-size 128256 \\
  --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --micro-batch-size 1 --global-batch-size {batch} \\
  --use-distributed-optimizer --overlap-grad-reduce {more}
"""
TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = {tp}
pipeline_parallel_degree = {pp}
{more}
"""


def found(tmp_path: Path, name: str, text: str, **more: object) -> Diagnosis:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return lint(path, **more)  # type: ignore[arg-type]


def codes(answer: Diagnosis) -> set[str]:
    return {finding.code for finding in answer.findings}


def megatron(tmp_path: Path, tp: int = 8, pp: int = 2, batch: int = 256, more: str = "--sequence-parallel") -> Diagnosis:
    return found(tmp_path, "run.sh", MEGATRON.format(tp=tp, pp=pp, batch=batch, more=more))


def test_a_sound_megatron_job_has_no_finding(tmp_path: Path) -> None:
    answer = megatron(tmp_path)
    assert answer.findings == () and answer.verdict == "healthy"
    assert answer.read == ("a Megatron-LM job: tp=8 sp pp=2 dp=1x4 zero=1 mb=1 on 64 GPUs, nodes of 8",)


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"tp": 16, "pp": 4}, "tp-across-nodes", "--tensor-model-parallel-size"),
        ({"tp": 16, "pp": 4}, "kv-copies", "kv heads"),
        ({"more": ""}, "sp-off", "without sp"),
        ({"pp": 8, "batch": 8}, "few-micro-batches", "micro-batches"),
        ({"tp": 3}, "gpus", "64"),
        ({"tp": 12, "pp": 1}, "tp-heads", "`--tensor-model-parallel-size` = 12"),
        ({"pp": 3}, "pp-layers", "`--pipeline-model-parallel-size` = 3"),
        ({"batch": 13}, "batch", "`--global-batch-size` = 13"),
        ({"more": "--sequence-parallel --context-parallel-size 4 --cp-comm-type a2a"}, "ulysses-across-nodes", "ulysses"),
        ({"more": "--tp-comm-overlap"}, "tp-overlap-without-sp", "--sequence-parallel"),
        ({"more": "--sequence-parallel --expert-model-parallel-size 4"}, "ep-dense", "--expert-model-parallel-size"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)  # fmt: skip
def test_megatron_mistakes(change: dict[str, object], code: str, word: str, tmp_path: Path) -> None:
    answer = megatron(tmp_path, **change)  # type: ignore[arg-type]
    (finding,) = [each for each in answer.findings if each.code == code] or [None]
    assert finding is not None, codes(answer)
    assert word in finding.title and finding.remedy and answer.exit_code == 1


def test_the_rank_order_decides_which_group_leaves_the_node(tmp_path: Path) -> None:
    """Four GPUs a node: tp = 8 then spans two."""
    script = MEGATRON.format(tp=8, pp=2, batch=256, more="--sequence-parallel").replace("--nproc_per_node 8", "--nproc_per_node 4")
    assert "tp-across-nodes" in codes(found(tmp_path, "run.sh", script))


def test_a_sound_torchtitan_job_has_no_finding(tmp_path: Path) -> None:
    answer = found(tmp_path, "job.toml", TITAN.format(tp=8, pp=1, more=""), gpus=64)
    assert answer.findings == (), codes(answer)


def test_torchtitan_mistakes(tmp_path: Path) -> None:
    assert {"tp-heads", "tp-framework"} & codes(found(tmp_path, "a.toml", TITAN.format(tp=12, pp=1, more=""))) == {"tp-heads"}
    wide = found(tmp_path, "b.toml", TITAN.format(tp=16, pp=1, more=""), gpus=64)
    assert {"tp-across-nodes", "tp-framework"} == codes(wide)  # torchtitan makes no copies of kv heads: it refuses
    assert all("`parallelism.tensor_parallel_degree` = 16" in finding.title for finding in wide.findings)


def test_torchtitan_keeps_what_it_gathered_under_a_pipeline(tmp_path: Path) -> None:
    assert "zero=3 " in found(tmp_path, "a.toml", TITAN.format(tp=8, pp=1, more=""), gpus=64).read[0]
    assert "zero=3:keep " in found(tmp_path, "b.toml", TITAN.format(tp=8, pp=2, more=""), gpus=64).read[0]


def test_torchtitan_on_the_command_line(tmp_path: Path) -> None:
    model = "--model.name llama3 --model.flavor 70B"
    script = f"torchrun --nproc_per_node=8 --nnodes=2 -m torchtitan.train {model} --parallelism.tensor_parallel_degree 16"
    answer = found(tmp_path, "run.sh", script)
    assert {"tp-across-nodes", "tp-framework"} <= codes(answer) and "torchtitan" in answer.read[0]


def test_deepspeed_batch_arithmetic(tmp_path: Path) -> None:
    config = {
        "train_batch_size": 100,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 2},
    }
    assert codes(found(tmp_path, "ds.json", json.dumps(config))) == {"batch"}
    assert codes(found(tmp_path, "ds.json", json.dumps(config | {"train_batch_size": 128}))) == set()
    on_sixteen = found(tmp_path, "ds.json", json.dumps(config | {"train_batch_size": 128}), gpus=16)
    assert "x 16 data-parallel ranks = 512" in on_sixteen.findings[0].title
    assert any("--gpus" in note for note in found(tmp_path, "ds.json", json.dumps(config)).notes)
    assert not any("--gpus" in note for note in on_sixteen.notes)


@pytest.mark.parametrize("word", ["bf16", "bfloat16"])
def test_deepspeed_takes_one_precision(word: str, tmp_path: Path) -> None:
    """DeepSpeed's own assertion: "bfloat16 and fp16 modes cannot be simultaneously enabled"."""
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, "fp16": {"enabled": True}}
    assert "two-precisions" in codes(found(tmp_path, "a.json", json.dumps(config | {word: {"enabled": True}})))
    assert codes(found(tmp_path, "b.json", json.dumps(config | {word: {"enabled": False}}))) == set()


def test_a_deepspeed_script_knows_its_gpus(tmp_path: Path) -> None:
    config = {
        "train_batch_size": 128,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 8,
        "zero_optimization": {"stage": 2},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config), encoding="utf-8")
    answer = found(tmp_path, "run.sh", "deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed --deepspeed_config ds.json\n")
    (finding,) = answer.findings
    assert finding.code == "batch" and "= 512" in finding.title


def test_accelerate_fsdp(tmp_path: Path) -> None:
    config = (
        "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\nfsdp_config: {fsdp_version: 2}\n"
        "parallelism_config: {parallelism_config_tp_size: %d}\n"
    )
    assert "tp-across-nodes" in codes(found(tmp_path, "a.yaml", config % 16))
    assert codes(found(tmp_path, "b.yaml", config % 1)) == set()


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 8", set()),
        ("vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 16", {"tp-across-nodes", "kv-copies"}),
        ("vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size=8 --pipeline-parallel-size 3", set()),
        ("python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen3-32B -tp 6", {"tp-heads", "tp-kv-heads", "tp-ffn"}),
        ("python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 8", {"kv-copies"}),
        ("vllm serve somebody/unknown --tensor-parallel-size 8", set()),
    ],
)  # fmt: skip
def test_servers(command: str, expected: set[str], tmp_path: Path) -> None:
    answer = found(tmp_path, "serve.sh", f"MODEL=x\n{command}\n")
    assert codes(answer) == expected, answer.findings


def test_the_model_of_a_server_may_be_a_folder(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert codes(found(tmp_path, "serve.sh", "vllm serve m --tensor-parallel-size 8")) == {"kv-copies"}


@pytest.mark.parametrize(
    ("name", "text"), [("run.sh", "echo hello\n"), ("c.json", "{}"), ("c.yaml", "- 1\n"), ("c.yaml", "a: [\n"), ("c.toml", "x = 1\n")]
)
def test_other_files_are_wrong_input(name: str, text: str, tmp_path: Path, meshwright: Callable[..., Result]) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    done = meshwright("lint", "--json", str(tmp_path / name))
    assert done.exit_code == 2 and json.loads(done.stdout)["errors"]


def test_degrees_out_of_range_are_told(tmp_path: Path) -> None:
    assert "value" in codes(found(tmp_path, "job.toml", TITAN.format(tp=2, pp=1, more="data_parallel_replicate_degree = 999999999999")))


def test_command_line(tmp_path: Path, meshwright: Callable[..., Result]) -> None:
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 16\n", encoding="utf-8")
    done = meshwright("lint", "--json", str(path))
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["verdict"]) == (1, "fault")
    assert set(answer["findings"][0]) == {"code", "title", "ranks", "group", "collective", "evidence", "remedy", "confidence"}
    text = meshwright("lint", str(path), "--cluster", "gb200-nvl72")
    assert "tp-across-nodes" not in text.output and "kv-copies" in text.output


def test_python_interface(tmp_path: Path) -> None:
    import meshwright as mw

    path = tmp_path / "serve.sh"
    path.write_text("vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 16\n", encoding="utf-8")
    assert codes(mw.lint(path)) == {"tp-across-nodes", "kv-copies"}
    assert codes(mw.lint(str(path), cluster="gb200-nvl72")) == {"kv-copies"}


def told(answer: Diagnosis) -> str:
    return "\n".join([*(f"{finding.title} {finding.remedy}" for finding in answer.findings), *answer.notes])


def test_sizes_of_nobody_are_not_told(tmp_path: Path) -> None:
    """A script without a model, or with a slip in its layers, is judged without one; tp = 3 may be right for it."""
    script = MEGATRON.format(tp=3, pp=2, batch=252, more="--sequence-parallel").replace("--nproc_per_node 8", "--nproc_per_node 6")
    slip = found(tmp_path, "run.sh", script.replace("--num-layers 80", "--num-layers 999999999"))
    assert "`--num-layers` = 999,999,999 is more than any model has" in told(slip)
    unknown = found(tmp_path, "run.sh", script.replace("--num-layers 80", ""))
    for answer in (slip, unknown):
        assert "num_heads" not in told(answer) and "the script's model" not in told(answer), told(answer)
        assert any(note.startswith("nothing of the model") for note in answer.notes)
    assert not codes(slip) & {"tp-heads", "tp-kv-heads", "tp-ffn"}
    assert "num_heads = 64 of the script's model" in told(found(tmp_path, "run.sh", script))  # its own sizes are told


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_in_a_config(number: str, tmp_path: Path) -> None:
    config = f'{{"train_batch_size": {number}, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {{"stage": 2}}}}'
    (finding,) = found(tmp_path, "ds.json", config).findings
    assert finding.code == "no-number" and "`train_batch_size` = " in finding.title
    (tmp_path / "c.json").write_text(config, encoding="utf-8")
    assert "no-number" in codes(found(tmp_path, "run.sh", "deepspeed --num_gpus 8 t.py --deepspeed_config c.json\n"))


def test_torchtitan_may_say_infinity_and_not_nan(tmp_path: Path) -> None:
    assert codes(found(tmp_path, "a.toml", TITAN.format(tp=8, pp=1, more="") + "[optimizer]\nmax_norm = inf\n", gpus=64)) == set()
    assert codes(found(tmp_path, "b.toml", TITAN.format(tp=8, pp=1, more="") + "[optimizer]\nlr = nan\n", gpus=64)) == {"no-number"}


def test_keys_given_twice(tmp_path: Path) -> None:
    """DeepSpeed refuses them, so does lint; PyYAML takes the last, which lint tells."""
    with pytest.raises(InputError, match="'train_batch_size' is given twice"):
        found(tmp_path, "ds.json", '{"train_batch_size": 8, "zero_optimization": {"stage": 2}, "train_batch_size": 16}')
    config = "distributed_type: FSDP\nnum_processes: 16\nfsdp_config:\n  fsdp_version: 2\n  fsdp_version: 1\nnum_processes: 8\n"
    answer = found(tmp_path, "a.yaml", config)
    assert {finding.title.partition("` is given twice, on lines ")[::2] for finding in answer.findings} == {
        ("`num_processes", "2 and 6: the last counts"), ("`fsdp_version", "4 and 5: the last counts"),
    }  # fmt: skip
    assert "on 8 GPUs" in answer.read[0]


def test_what_no_rule_looks_at_is_said(tmp_path: Path) -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"}, "mics_shard_size": -1}
    notes = found(tmp_path, "ds.json", json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero})).notes
    assert any("`zero_optimization.offload_optimizer` (to cpu)" in note for note in notes)
    assert not any("offload_param" in note or "mics" in note for note in notes)
    fsdp = "fsdp_config:\n  fsdp_offload_params: true\n  fsdp_use_orig_params: false\n  fsdp_backward_prefetch: BACKWARD_PRE\n"
    notes = found(tmp_path, "a.yaml", f"distributed_type: FSDP\nnum_processes: 8\n{fsdp}").notes
    assert "nothing of `fsdp_offload_params`, `fsdp_backward_prefetch`: no rule looks at them" in notes
    assert (
        "recompute=full" in found(tmp_path, "b.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_activation_checkpointing: true}").read[0]
    )


@pytest.mark.parametrize(
    ("option", "read", "note"),
    [
        ("2", "recompute=full=8 ", "as recompute=full=8"),  # 32 layers over 2 stages: 8 of 16
        ("1", "recompute=full ", ""),
        ("op", "recompute=selective ", "the nearest that a layout says"),
        ("99", "zero=3:keep mb=1 on", ""),
    ],
)
def test_selective_checkpoints_of_torchtitan(option: str, read: str, note: str, tmp_path: Path) -> None:
    """torchtitan/distributed/activation_checkpoint.py checkpoints every n-th layer, or by operation."""
    pipeline = 'pipeline_parallel_schedule = "1F1B"\n'
    more = f'{pipeline}[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "{option}"\n'
    answer = found(tmp_path, "job.toml", TITAN.format(tp=4, pp=2, more=more))
    assert read in answer.read[0] and (not note or any(note in each for each in answer.notes))
    assert answer.findings == ()


@pytest.mark.parametrize(
    ("layers", "said", "title"),
    [
        (30, "--num-layers-per-virtual-pipeline-stage 2", "= 30 is no multiple of `--pipeline-model-parallel-size` 4 x `--num-layers-per-"),
        (30, "--num-virtual-stages-per-pipeline-rank 2", "= 30 is no multiple of `--pipeline-model-parallel-size` 4 x `--num-virtual-"),
        (30, "--decoder-first-pipeline-num-layers 5", "`--decoder-first-pipeline-num-layers` = 5 of `--num-layers` = 30 leave 25 layers"),
        (31, "--decoder-first-pipeline-num-layers 7", ""),
        (28, "--decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 2", ""),
        (64, "--decoder-first-pipeline-num-layers 10 --num-virtual-stages-per-pipeline-rank 2", ""),
        (32, "--num-layers-per-virtual-pipeline-stage 2", ""),
    ],
)
def test_layers_of_pipelines_in_the_words_of_megatron(layers: int, said: str, title: str, tmp_path: Path) -> None:
    script = MEGATRON.format(tp=4, pp=4, batch=256, more=f"--sequence-parallel {said}").replace("--num-layers 80", f"--num-layers {layers}")
    answer = found(tmp_path, "run.sh", script)
    assert codes(answer) == ({"pp-layers"} if title else set()), answer.findings
    assert title in told(answer)
