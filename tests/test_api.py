"""The verbs as functions of the package."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import meshwright as mw
from meshwright import api
from meshwright.errors import InputError

SAID = {"cluster": "h100-sxm", "layout": "tp=8 sp pp=4 dp=1x2 zero=1 mb=1", "seq": 8192, "batch": 512}


def test_verbs_return_plain_objects():
    estimate = mw.estimate("llama-3.1-70b", **SAID)
    assert sum(estimate.parts.values()) == pytest.approx(estimate.step_s, rel=1e-12)
    assert mw.memory("llama-3.1-70b", **SAID).fullest.peak_bytes == estimate.memory_bytes
    assert mw.explain("llama-3.1-70b", layer=25, **SAID).rank == 16
    assert mw.explain("llama-3.1-70b", by="axis", **SAID).line("tp").degree == 8
    assert mw.explain("llama-3.1-70b", by="axis").letters["L"] == 80
    assert mw.ranks("llama-3.1-70b", cluster="h100-sxm", layout="tp=8 dp=1x2").world_size == 16


def test_compare_takes_several_layouts():
    said = {key: value for key, value in SAID.items() if key != "layout"}
    found = mw.compare("llama-3.1-70b", ["tp=8 sp dp=1x8 zero=3", SAID["layout"]], **said)
    assert found.best == 1 and found.differences[0].step_s > 0


def test_mistakes_name_the_call_and_its_arguments():
    with pytest.raises(InputError) as error:
        mw.estimate("llama-3.1-70b", stack="megatorn")
    assert {(mistake.file, mistake.key) for mistake in error.value.mistakes} == {
        ("estimate()", "cluster"), ("estimate()", "layout"), ("estimate()", "stack"),
    }  # fmt: skip
    with pytest.raises(InputError, match="causal, full, hardware, 6n"):
        mw.estimate("llama-3.1-70b", mfu_convention="best", **SAID)
    with pytest.raises(InputError, match="a whole number from 1 to 100000000"):
        mw.estimate("llama-3.1-70b", **{**SAID, "seq": "8192"})


@pytest.mark.parametrize("verb", mw.VERBS)
def test_a_module_of_the_same_name_does_not_take_a_verbs_place(verb):
    for name in (f"meshwright.{verb}", f"meshwright.cli.{verb}"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert name != f"meshwright.cli.{verb}" or verb in ("compare", "orders")
    assert getattr(mw, verb) is getattr(api, verb)


def test_type_checkers_see_every_verb():
    stub = Path(mw.__file__).with_name("__init__.pyi").read_text(encoding="utf-8")
    assert set(re.findall(r"^from meshwright\.api import (\w+) as \1$", stub, flags=re.MULTILINE)) == set(mw.VERBS)


def test_what_is_no_verb_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'estimates'"):
        _ = mw.estimates


@pytest.mark.dist
def test_importing_the_package_is_light(fresh_python):
    code = "import sys, meshwright; print(*(name for name in ('numpy', 'click', 'rich', 'meshwright.api') if name in sys.modules))"
    done = fresh_python("-c", code)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_prove_tells_a_wrong_dtype_and_too_few_processes():
    with pytest.raises(InputError, match="float64, float32, bf16"):
        mw.prove("llama-3.1-8b", layout="tp=2 dp=1 mb=1", seq=64, batch=4, dtype="fp8")
    with pytest.raises(InputError, match="16 or more"):
        mw.prove("llama-3.1-8b", layout="tp=2 cp=2 dp=2x2 mb=1", seq=64, batch=4)


def test_numbers_that_are_none_are_told_before_anything_runs():
    said = {"cluster": "h100-sxm", "seq": 2048, "batch": 8}
    with pytest.raises(InputError) as caught:
        mw.plan("llama-3.1-8b", gpus=8, top=0, vocab_pad=0, tokens=-4, constraints="tp=2,zz=1", **said)
    assert [mistake.key for mistake in caught.value.mistakes] == ["--top", "--vocab-pad", "--tokens", "zz"]
    with pytest.raises(InputError) as caught:
        mw.explain("llama-3.1-8b", layout="tp=8", rank="0", layer=-1, row=1.0, by="axes", **said)
    assert [mistake.key for mistake in caught.value.mistakes] == ["layer", "rank", "row", "by"]
    with pytest.raises(InputError) as caught:
        mw.prove("llama-3.1-8b", layout="tp=2", ranks="2", steps=-1, seed=-1)
    assert [mistake.key for mistake in caught.value.mistakes] == ["ranks", "steps", "seed"]
    with pytest.raises(InputError) as caught:
        mw.estimate("llama-3.1-8b", layout="tp=8", precision=16, stack=5, **said)
    assert [mistake.key for mistake in caught.value.mistakes] == ["precision", "stack"]


def test_one_text_may_stand_for_a_list_of_one():
    said = {"cluster": "h100-sxm", "gpus": 8, "seq": 2048, "batch": 8}
    assert (
        mw.plan("llama-3.1-8b", constraints="tp=4,pp=2", **said).plans
        == mw.plan("llama-3.1-8b", constraints=["tp=4", "pp=2"], **said).plans
    )
    assert mw.compare("llama-3.1-8b", "tp=8", **said) == mw.compare("llama-3.1-8b", ["tp=8"], **said)
