"""Events of a trace one after the other: both forms, torn and broken files, and never more in memory than a window."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from meshwright.recording import json_events
from meshwright.recording.json_events import BadTrace, EventStream

EVENTS = [{"ph": "X", "name": f"e{n}", "ts": n * 1.5, "args": {"dims": [[n, 2], []], "text": '} , { "ph"'}} for n in range(200)]


def read(text: str | bytes) -> tuple[list[dict[str, Any]], EventStream]:
    stream = EventStream(io.BytesIO(text if isinstance(text, bytes) else text.encode()))
    return list(stream), stream


@pytest.fixture(params=[1, 7, 1 << 22], ids=lambda size: f"pieces of {size}")
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "PIECE_BYTES", request.param)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("indent", [None, 1])
def test_both_forms_give_what_json_gives(indent: int | None) -> None:
    few = EVENTS[:20]
    body = {"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": few, "traceName": "ü"}
    assert read(json.dumps(few, indent=indent))[0] == few
    events, stream = read(json.dumps(body, indent=indent, ensure_ascii=False))
    assert events == few
    assert stream.header == {key: value for key, value in body.items() if key != "traceEvents"}
    assert not stream.truncated and not stream.bad_events


@pytest.mark.usefixtures("pieces")
def test_a_byte_order_mark_is_passed_over() -> None:
    assert read(b'\xef\xbb\xbf[{"a": 1}]')[0] == [{"a": 1}]


@pytest.mark.usefixtures("pieces")
def test_what_is_not_an_event_is_passed_over() -> None:
    assert read('[1, {"a": 1}, "x", null, [{}], {"b": 2}]')[0] == [{"a": 1}, {"b": 2}]
    assert read('{"traceEvents": [], "x": -1.5e3}')[1].header == {"x": -1500.0}


@pytest.mark.parametrize("cut", [30, 777, 5000])
def test_a_torn_file_gives_what_came_before(cut: int) -> None:
    text = json.dumps({"traceEvents": EVENTS})[:-cut]
    events, stream = read(text)
    assert stream.truncated
    assert events == EVENTS[: len(events)] and len(events) >= text.count('"name"') - 1


def test_an_event_that_is_not_json_is_left_out() -> None:
    good = [json.dumps(event) for event in EVENTS[:5]]
    good[2] = '{"ph": "X", "name": "C:\\path", "ts": 1}'
    events, stream = read("[" + ",\n".join(good) + "]")
    assert [event["name"] for event in events] == ["e0", "e1", "e3", "e4"]
    assert stream.bad_events == 1 and not stream.truncated


def test_control_characters_in_names_are_read() -> None:
    assert read('[{"name": "a\tb"}]')[0] == [{"name": "a\tb"}]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"), ("  \n ", "is empty"), ("hello", "neither"), ('"text"', "neither"), ('{"a": 1}', "without `traceEvents`"),
        ('{"traceEvents": {}}', "no list"), ('{"a" 1}', "colon"), ("{1: 2}", "key"), ('{"a": }', "not JSON"),
    ],
)  # fmt: skip
def test_what_is_no_trace_says_why(text: str, problem: str) -> None:
    with pytest.raises(BadTrace, match=problem):
        read(text)


def test_deep_nesting_is_no_crash() -> None:
    with pytest.raises(BadTrace, match="deeply"):
        read('{"a": ' + "[" * 200_000)


def test_a_value_without_end_is_not_read_on_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "MAX_VALUE_CHARS", 1000)
    monkeypatch.setattr(json_events, "PIECE_BYTES", 100)
    with pytest.raises(BadTrace, match="more than"):
        read('[{"name": "' + "x" * 5000 + '"}]')


def test_the_window_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_events, "PIECE_BYTES", 1000)
    stream = EventStream(io.BytesIO(json.dumps(EVENTS * 20).encode()))
    assert max(len(stream._text) for _ in stream) < 5000
