"""What the commands print, whole, for two models. ``pytest tests/golden --rewrite-golden`` writes the files anew; read the diff.

The files are there to see what a change does to the text; that the numbers are right is for the other tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

DENSE = "llama-3.1-70b --cluster h100-sxm --gpus 64 --seq 8192 --batch 512"
MOE = "deepseek-v3 --cluster h800-sxm --gpus 2048 --seq 4096 --batch 15360"
MOE_LAYOUT = "pp=16:dualpipe stages=3,4,4,4,4,4,4,4,4,4,4,4,4,4,4,2 ep=64 zero=1 mb=1 recompute=selective"

COMMANDS = {
    "dense-estimate": ["estimate", *DENSE.split(), "--layout", "tp=8 sp dp=1x8 zero=3 mb=1"],
    "dense-compare": [
        "estimate", *DENSE.split(), "--layout", "tp=8 sp dp=1x8 zero=3 mb=1", "--layout", "tp=8 sp pp=4 zero=1 mb=1",
        "--layout", "tp=4 sp cp=2 dp=1x8 zero=1 mb=1 recompute=full", "--layout", "dp=1x64 zero=3 mb=1",
    ],
    "dense-too-large": ["estimate", *DENSE.split(), "--layout", "dp=1x64 zero=3 mb=1"],
    "dense-explain-layer": ["explain", *DENSE.split(), "--layout", "tp=8 sp cp=2:ring dp=1x4 zero=3 mb=1", "--layer", "40"],
    "dense-explain-row": ["explain", *DENSE.split(), "--layout", "tp=8 sp dp=1x8 zero=3 mb=1", "--layer", "40", "--row", "4"],
    "dense-explain-collective": ["explain", *DENSE.split(), "--layout", "tp=8 sp dp=1x8 zero=3 mb=1", "--layer", "40", "--row", "3"],
    "dense-explain-axes": ["explain", *DENSE.split(), "--layout", "tp=8 sp pp=4 zero=1 mb=1", "--by", "axis"],
    "dense-explain-letters": ["explain", "llama-3.1-70b", "--by", "axis"],
    "dense-memory": ["memory", *DENSE.split(), "--layout", "tp=8 sp pp=4:interleaved*2 dp=1x2 mb=1 zero=1"],
    "dense-ranks": ["ranks", *DENSE.split(), "--layout", "tp=8 sp pp=4 dp=1x2"],
    "moe-estimate": ["estimate", *MOE.split(), "--layout", MOE_LAYOUT],
    "moe-explain-layer": ["explain", *MOE.split(), "--layout", MOE_LAYOUT, "--layer", "30"],
    "moe-explain-axes": ["explain", *MOE.split(), "--layout", MOE_LAYOUT, "--by", "axis"],
    "moe-explain-letters": ["explain", "deepseek-v3", "--by", "axis"],
    "moe-memory": ["memory", *MOE.split(), "--layout", MOE_LAYOUT],
    "moe-ranks": ["ranks", *MOE.split(), "--layout", MOE_LAYOUT],
}  # fmt: skip
"""File -> command line."""

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("name", COMMANDS)
def test_the_text_is_the_one_on_file(name, meshwright, request):
    result = meshwright(*COMMANDS[name])
    assert result.exit_code in (0, 1)
    text = f"$ meshwright {' '.join(word if ' ' not in word else repr(word) for word in COMMANDS[name])}\n{result.output}"
    file = FOLDER / f"{name}.txt"
    if request.config.getoption("--rewrite-golden"):
        file.write_text(text, encoding="utf-8")
    assert file.exists(), "no such file yet: pytest tests/golden --rewrite-golden"
    assert text == file.read_text(encoding="utf-8")


def test_every_file_belongs_to_a_command():
    assert {file.stem for file in FOLDER.glob("*.txt")} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_lines_fit_a_page_and_numbers_are_numbers(name):
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()[1:]
    assert all(len(line) <= 120 for line in lines if not line.startswith(("warning", "  hint"))), max(lines, key=len)
    words = " ".join(lines).lower().replace("(", " ").split()
    assert not {"nan", "inf", "none", "infinity", "-inf"} & set(words)
