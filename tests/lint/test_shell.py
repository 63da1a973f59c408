"""Launch scripts are read as a shell would read them, and nothing in them is executed. bash itself says what the words are."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.lint.shell import options_of, read_script

SCRIPT = r"""#!/bin/bash
#SBATCH --nodes=4 --gres=gpu:h100:8
# A comment --with 1
TP=8; export PP=4
GPUS=$(( TP * PP * 2 ))
NNODES=${MISSING:-3}
export LAYERS=80 HIDDEN="8192"
ARGS=(
    --num-layers $LAYERS   # not part of it
    --hidden-size "$HIDDEN"
    --name 'two words'
)
MORE="--a 1 \
  --b=2"
MORE+=" --flag"
run --nproc_per_node $GPUS --nnodes=${NNODES} script.py "${ARGS[@]}" ${MORE} --tp ${TP} --last
"""


def words() -> tuple[str, ...]:
    (command,) = [each for each in read_script(SCRIPT).commands if each[0] == "run"]
    return command


def test_variables_arrays_defaults_and_arithmetic() -> None:
    options = options_of(words()[1:])
    assert options.number("nproc-per-node") == 64 and options.number("nnodes") == 3
    assert options.number("num-layers") == 80 and options.number("hidden-size") == 8192
    assert options.values["b"] == "2" and options.values["last"] is None and options.has("flag")
    assert options.positional == ("script.py", "words")  # what stood in quotes inside an array comes apart


@pytest.mark.dist
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not there to compare with")
def test_words_are_those_that_bash_makes(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("run() { printf '%s\\n' \"$@\"; }\n" + SCRIPT.replace("'two words'", "two"), encoding="utf-8")
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=True, timeout=30)
    (command,) = [each for each in read_script(SCRIPT.replace("'two words'", "two")).commands if each[0] == "run"]
    ours = list(command[1:])
    assert ours == done.stdout.splitlines()


def test_slurm_lines_are_options() -> None:
    directives = read_script(SCRIPT).directives
    assert directives.number("nodes") == 4 and directives.text("gres") == "gpu:h100:8"


def test_what_would_have_to_be_run_counts_as_not_said(tmp_path: Path) -> None:
    script = read_script(f"N=$(touch {tmp_path}/ran)\nrun --tp $N --pp 2\n")
    assert not (tmp_path / "ran").exists()
    options = options_of(script.commands[-1])
    assert options.number("tp") is None and options.text("tp") is None and options.number("pp") == 2


@pytest.mark.parametrize(
    "text", ["", 'echo "never closed\n--a 1', "A=(\n--b 1\n", "A=$((1/0))\nrun $A", "${", "X=${X}\nrun $X", "\x00\x01"]
)
def test_odd_scripts_do_no_harm(text: str) -> None:
    """What can be told of them is: a word is a text, and nothing is made up that is not written there."""
    for word in (word for command in read_script(text).commands for word in command):
        assert not word.startswith("--") or word in text


def test_input_of_a_command_is_no_part_of_the_script() -> None:
    text = "cat > notes.txt <<'EOF'\nIt isn't closed: --tp 4\nEOF\nrun --tp 8\n"
    assert options_of(read_script(text).commands[-1]).number("tp") == 8


def test_a_long_script_with_an_open_quote_is_read_in_one_pass() -> None:
    """Its lines would be read again and again, were each longer piece looked at from its beginning; 30,000 lines take no time so."""
    script = read_script("echo 'never closed\n" + "run --tp 8 --pp 2\n" * 30_000)
    assert len(script.commands) > 20_000


@given(st.text(alphabet="ab=()$'\"{}\\ \n#-;&|<E1*/%@[]:+`", max_size=60))
def test_any_text_is_read(text: str) -> None:
    script = read_script(text)
    assert all(isinstance(word, str | None) for command in script.commands for word in command)
    assert read_script(text).commands == script.commands
