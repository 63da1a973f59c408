"""Files that cannot be read or are not what they should be: one mistake, with the file and the line; never a traceback."""

from __future__ import annotations

import os
import stat

import pytest

from meshwright.errors import InputError
from meshwright.spec import files
from meshwright.spec.files import parse_json, parse_toml, read_json, read_toml, write_text


def problem(call, *args):
    with pytest.raises(InputError) as caught:
        call(*args)
    (mistake,) = caught.value.mistakes
    return mistake


def test_missing_file_names_its_neighbour(tmp_path):
    (tmp_path / "cluster.toml").write_text("")
    mistake = problem(read_toml, tmp_path / "clutser.toml")
    assert mistake.problem == "does not exist"
    assert mistake.hint == f"did you mean `{tmp_path / 'cluster.toml'}`?"


def test_folder(tmp_path):
    assert problem(read_toml, tmp_path).problem == "is a folder"


@pytest.mark.parametrize("name", ["\0.toml", "a" * 5000])
def test_impossible_names(tmp_path, name):
    assert "cannot be read" in problem(read_toml, tmp_path / name).problem


def test_a_file_as_a_folder(tmp_path):
    (tmp_path / "x").write_text("")
    assert "cannot be read" in problem(read_toml, tmp_path / "x" / "y.toml").problem


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path):
    (tmp_path / "x.toml").write_text("")
    (tmp_path / "x.toml").chmod(0)
    assert "Permission denied" in problem(read_toml, tmp_path / "x.toml").problem


def test_not_utf8(tmp_path):
    (tmp_path / "x.toml").write_bytes(b'name = "caf\xe9"')
    assert problem(read_toml, tmp_path / "x.toml").problem == "is not UTF-8 text: byte 11 is 0xe9"


def test_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_FILE_BYTES", 10)
    (tmp_path / "x.json").write_text(" " * 11)
    assert problem(read_json, tmp_path / "x.json").problem == "is too large"


def test_byte_order_mark(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xef\xbb\xbfa = 1")
    assert read_toml(tmp_path / "x.toml") == {"a": 1}


@pytest.mark.parametrize(
    ("text", "place"),
    [("a = 1\nb = \n", "line 2"), ("a = 1\na = 2", "line 2"), ("[a", "line 1"), ("a = 1e", "line 1"), ("a = 2 = 3", "line 1")],
)
def test_toml_syntax_names_the_line(text, place):
    mistake = problem(parse_toml, text, "x.toml")
    assert mistake.problem.startswith("is not TOML: ") and (place in mistake.problem or "end of document" in mistake.problem)


@pytest.mark.parametrize("text", ['{"a": 1', "", "{'a': 1}", '{"a": 1, "a": 2}', "9" * 5000])
def test_json_syntax(text):
    assert problem(parse_json, text, "config.json").problem.startswith("is not JSON: ")


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_words_that_only_python_calls_json(word):
    assert "not a number of JSON" in problem(parse_json, f'{{"a": [{word}]}}', "config.json").problem


@pytest.mark.parametrize("text", ["[]", "3", "null", '"text"', "true"])
def test_json_that_is_no_object(text):
    assert problem(parse_json, text, "config.json").problem.startswith("is JSON, but holds ")


@pytest.mark.parametrize("parse", [parse_toml, parse_json])
def test_deep_nesting(parse):
    assert problem(parse, ("a = " if parse is parse_toml else "") + "[" * 10**5, "x").problem


def test_writing_replaces_the_whole_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "x.toml"
    write_text(path, "old")
    write_text(path, "new\n")
    assert path.read_bytes() == b"new\n"
    assert os.listdir(tmp_path) == ["x.toml"]


def test_writing_goes_through_a_link(tmp_path):
    (tmp_path / "real.toml").write_text("old")
    (tmp_path / "link.toml").symlink_to(tmp_path / "real.toml")
    write_text(tmp_path / "link.toml", "new")
    assert (tmp_path / "real.toml").read_text() == "new" and (tmp_path / "link.toml").is_symlink()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.toml"
    path.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in problem(write_text, path, "new").problem
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["x.toml"]


def test_writing_where_nothing_can_be_written(tmp_path):
    assert "no folder" in problem(write_text, tmp_path / "gone" / "x.toml", "").problem
    assert problem(write_text, tmp_path, "").problem == "is a folder"
    assert problem(write_text, tmp_path / ("a" * 300), "").problem.startswith("cannot be written")
    assert problem(write_text, tmp_path / "a\0b", "").problem.startswith("cannot be written")


def test_writing_into_what_is_no_file_does_not_replace_it(tmp_path):
    """As root, renaming a file onto /dev/null would take it away from everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "text")
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode) and os.listdir(tmp_path) == ["pipe"]
