"""What a user may call a model, and what is said where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.errors import InputError, Mistake
from meshwright.spec.load_model import resolve_model
from meshwright.spec.parameters import parameter_count
from model_configs import CONFIGS


def only_mistake(text: str) -> Mistake:
    with pytest.raises(InputError) as caught:
        resolve_model(text)
    (mistake,) = caught.value.mistakes
    return mistake


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint = tmp_path / "tiny-llama"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps(CONFIGS["llama"]))
    return checkpoint


@pytest.mark.parametrize("text", ["llama-3.1-70b", "Llama-3.1-70B"])
def test_name_of_the_catalog(text: str) -> None:
    model = resolve_model(text)
    assert model.name == "llama-3.1-70b"
    assert parameter_count(model) == 70_553_706_496


def test_file_and_folder(folder: Path) -> None:
    by_file, by_folder = resolve_model(str(folder / "config.json")), resolve_model(str(folder))
    assert by_file == by_folder
    assert (by_file.name, by_file.source) == ("tiny-llama", str(folder / "config.json"))


def test_file_of_another_name(folder: Path) -> None:
    (folder / "other.json").write_text(json.dumps(CONFIGS["gpt2"]))
    assert resolve_model(str(folder / "other.json")).name == "other"


def test_relative_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert resolve_model("config.json").name == "tiny-llama"
    assert resolve_model(".").name == "tiny-llama"
    monkeypatch.chdir(folder.parent)
    assert resolve_model("tiny-llama").name == "tiny-llama"


def test_toml_file(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text('vocab_size=8\nhidden_size=8\nffn_size=8\nlayers=["dense"]\n[attention]\nnum_heads=2\n')
    assert resolve_model(str(tmp_path / "ours.toml")).name == "ours"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("llama-3.1-71b", "did you mean `llama-3.1-7"),
        ("meta-llama/Llama-3.1-70B", "did you mean `llama-3.1-70b`?"),
        ("mixtral8x7b", "did you mean `mixtral-8x7b`?"),
        ("zzz", "`meshwright catalog models` lists the names"),
        ("x\0y", "`meshwright catalog models` lists the names"),
        ("a" * 5000, "`meshwright catalog models` lists the names"),
    ],
)
def test_unknown_name(text: str, hint: str) -> None:
    mistake = only_mistake(text)
    assert (mistake.key, mistake.value) == ("model", text)
    assert mistake.hint.startswith(hint)


@pytest.mark.parametrize("text", ["", "  "])
def test_no_name(text: str) -> None:
    assert only_mistake(text).problem == "is empty"


def test_missing_file_and_its_neighbour(folder: Path) -> None:
    mistake = only_mistake(str(folder / "confg.json"))
    assert mistake.problem == "does not exist"
    assert mistake.hint == f"did you mean `{folder / 'config.json'}`?"
    assert only_mistake("/nowhere/config.json").problem == "does not exist"


def test_folder_without_config(tmp_path: Path) -> None:
    assert only_mistake(str(tmp_path)).problem == "is a folder without a config.json"
    (tmp_path / "params.json").write_text("{}")
    assert only_mistake(str(tmp_path)).hint == "it holds params.json"


@pytest.mark.parametrize("text", ["", "{", '{"model_type": "llama"', "[1]", "null", "weights", '{"a": 1, "a": 2}', "[" * 10**5])
def test_text_that_is_no_json_object(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    mistake = only_mistake(str(folder))
    assert (mistake.file, mistake.key) == (str(folder / "config.json"), "")
    assert mistake.problem.startswith("is ")


@pytest.mark.parametrize("data", [b"\xff\xfe{\x00}\x00", b"\x80\x81", bytes(range(256))])
def test_bytes_that_are_no_text(folder: Path, data: bytes) -> None:
    (folder / "config.json").write_bytes(data)
    assert "UTF-8" in only_mistake(str(folder)).problem


def test_deep_nesting_in_a_key(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama", "x": ' + "[" * 200 + "]" * 200 + "}")
    assert only_mistake(str(folder)).problem == "is nested too deeply"


def test_nan_is_told_with_its_key_and_the_other_mistakes(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama", "rms_norm_eps": NaN, "x": {"y": [1e999]}, "hidden_size": 0}')
    with pytest.raises(InputError) as caught:
        resolve_model(str(folder))
    assert {mistake.key for mistake in caught.value.mistakes} == {"rms_norm_eps", "x", "x.y[0]", "hidden_size"}
