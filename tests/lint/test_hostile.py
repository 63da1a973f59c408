"""Scripts and configs that would grow or never end: read in bounded time and memory, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.lint.judge import LARGEST_CHARS, lint
from meshwright.lint.shell import read_script

SIZES = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32"
COMMAND = f"torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 3 {SIZES}\n"
FSDP = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"


def script(folder: Path, text: str, name: str = "run.sh") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("line", ["A=$A$A", "A+=$A", 'A+=("${A[@]}" "${A[@]}")'])
def test_a_variable_that_doubles_does_not_fill_the_memory(tmp_path: Path, line: str) -> None:
    text = "A=xx\n" + 60 * f"{line}\n"
    assert len(read_script(text).variables["A"]) < 60 * 150_000
    assert any("tp" in found.code for found in lint(script(tmp_path, text + COMMAND)).findings)


def test_here_documents_without_an_end_are_commands(tmp_path: Path) -> None:
    assert len(read_script("cat <<EOF\n" * 20_000).commands) == 20_000
    assert read_script("cat <<EOF\n--a 1\nEOF\necho b\n").commands[-1] == ("echo", "b")
    assert not any("--a" in words for words in read_script("cat <<-'EOF'\n--a 1\n\tEOF\necho b\n").commands)


@pytest.mark.parametrize("said", ["--num-layers 999999999", "--gres=gpu:\u00b2", "--pipeline-model-parallel-size 999999999"])
def test_numbers_that_no_job_has(tmp_path: Path, said: str) -> None:
    text = COMMAND.replace("--num-layers 32", said if "layers" in said else f"--num-layers 32 {said}")
    codes = {found.code for found in lint(script(tmp_path, text)).findings}
    assert codes & {"tp-heads", "value"}  # tp=3 of 32 heads, or the number itself


def test_digits_of_other_alphabets_are_no_numbers(tmp_path: Path) -> None:
    config = lint(script(tmp_path, '{"zero_optimization": {"stage": "\u00b2"}, "train_batch_size": 8}', "ds.json"))
    assert not any("\u00b2" in found.title for found in config.findings)
    command = lint(script(tmp_path, "#SBATCH --gres=gpu:\u00b2\n" + COMMAND.replace("--nproc-per-node 8 ", "")))
    assert any("tp" in found.code for found in command.findings)


def test_aliases_and_long_files_are_refused(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    with pytest.raises(InputError, match="aliases"):
        lint(script(tmp_path, bomb + FSDP, "fsdp.yaml"))
    with pytest.raises(InputError, match="larger than any"):
        lint(script(tmp_path, COMMAND + "#" * LARGEST_CHARS))
    with pytest.raises(InputError, match="nested too deeply"):
        lint(script(tmp_path, "a: " + "[" * 100_000, "fsdp.yaml"))
