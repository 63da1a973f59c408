"""The shared arguments: what they accept, what they say of the rest, and what a command gets."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from meshwright.cli.options import Count, Fraction, OneOf, PlanArguments, Tokens, command, plan_arguments
from meshwright.errors import InputError


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("8192", 8192), ("100000000", 10**8), ("007", 7)])
def test_counts_are_whole_numbers(text, value):
    assert Count().convert(text, None, None) == value


@pytest.mark.parametrize("text", ["0", "-1", "100000001", "1e3", "8k", "1.0", "nan", "inf", "", " 8", "8_192", "\u0663", "9" * 5000])
def test_anything_else_is_not_a_count(text):
    with pytest.raises(InputError, match="a whole number from 1 to 10\\^8"):
        Count().convert(text, None, None)


@pytest.mark.parametrize(("text", "value"), [("15T", 15 * 10**12), ("300b", 300 * 10**9), ("1.5M", 1_500_000), ("7", 7)])
def test_tokens_take_a_unit(text, value):
    assert Tokens().convert(text, None, None) == value


@pytest.mark.parametrize("text", ["0", "-1T", "nan", "inf", "15X", "T", "1e400", "9" * 400, "1001T"])
def test_anything_else_is_not_a_number_of_tokens(text):
    with pytest.raises(InputError, match="15T"):
        Tokens().convert(text, None, None)


def test_a_word_of_other_programs_is_answered_with_ours():
    with pytest.raises(InputError, match="it is called `bf16` here"):
        OneOf("RECIPE", ("bf16", "float64"), {"bfloat16": "bf16"}).convert("BFloat16", None, None)


@pytest.mark.parametrize(("text", "value"), [("0.92", 0.92), ("1", 1.0), (".5", 0.5), ("1.000", 1.0)])
def test_fractions(text, value):
    assert Fraction().convert(text, None, None) == value


@pytest.mark.parametrize("text", ["0", "0.0", "-0.5", "1.01", "nan", "inf", "-inf", ".", "", "1e-3", "92%", "\u0660.\u0665"])
def test_anything_else_is_not_a_fraction(text):
    with pytest.raises(InputError, match="above 0 and up to 1"):
        Fraction().convert(text, None, None)


def test_a_name_that_is_nearly_right_gets_a_suggestion():
    with pytest.raises(InputError) as error:
        OneOf("STACK", ("megatron", "fsdp")).convert("megatorn", None, None)
    (mistake,) = error.value.mistakes
    assert (mistake.value, mistake.legal, mistake.hint) == ("megatorn", "megatron, fsdp", "did you mean `megatron`?")


def job_of(layouts: str, *args: str) -> PlanArguments:
    """What a command with these shared arguments is given."""
    seen: list[PlanArguments] = []

    @command()
    @plan_arguments("PLAN", layouts=layouts)
    def show(job: PlanArguments, as_json: bool) -> None:
        """Keep what was given."""
        seen.append(job)

    CliRunner().invoke(show, list(args), standalone_mode=False, catch_exceptions=False)
    return seen[0]


def test_a_job_holds_what_was_said():
    job = job_of(
        "many", "llama", "--cluster", "h100-sxm", "--gpus", "64", "--layout", "tp=8", "--layout", "tp=4", "--seq", "8192",
        "--batch", "512", "--precision", "fsdp", "--memory-fraction", "0.9", "--stack", "megatron",
    )  # fmt: skip
    assert job == PlanArguments(
        subject="llama", cluster="h100-sxm", gpus=64, layouts=("tp=8", "tp=4"), seq=8192, batch=512, precision="fsdp",
        memory_fraction=0.9, stack="megatron",
    )  # fmt: skip
    assert not job.is_plan


def test_what_was_left_out_is_none():
    job = job_of("one", "plan.toml")
    assert job.is_plan
    assert (job.cluster, job.gpus, job.layouts, job.seq, job.batch, job.precision, job.stack) == (None, None, (), None, None, None, None)
    assert job.memory_fraction is None


def test_an_empty_layout_is_kept_for_the_parser_to_refuse():
    assert job_of("one", "llama", "--layout", "").layouts == ("",)


def test_a_command_that_chooses_the_layout_takes_none():
    assert job_of("none", "llama").layouts == ()
    with pytest.raises(InputError, match="--layout"):
        job_of("none", "llama", "--layout", "tp=8")


def test_every_wrong_argument_is_named():
    args = ["llama", "--gpus", "0", "--seq", "many", "--batch", "1e9", "--memory-fraction", "nan", "--precision", "bf17", "--stack", "x"]
    with pytest.raises(InputError) as error:
        job_of("one", *args)
    keys = {mistake.key: mistake.value for mistake in error.value.mistakes}
    assert keys == dict(zip(args[1::2], args[2::2], strict=True))


def test_the_subject_is_required():
    with pytest.raises(InputError, match="PLAN` is missing"):
        job_of("one")
