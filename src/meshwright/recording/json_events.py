"""Reads the events of a trace one after the other, so that a trace of gigabytes needs megabytes.

Two forms exist: an object whose ``traceEvents`` is the list of events, and the bare list. Python's own JSON scanner decodes each
event; what is ours is the walk from one to the next in a window over the file.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, Protocol

__all__ = ["BadTrace", "EventStream"]

PIECE_BYTES = 4 << 20
"""Bytes read at a time: with the text and the events of it, some 30 MB at most."""

MAX_VALUE_CHARS = 64 << 20
"""Characters of one value. An event has some hundred, the longest header (device properties, group ranks) some million."""

NUMBER_CHARS = 40
"""Characters after which a number in a trace has surely ended."""

_SPACE = re.compile(r"[\s,]*")
_NEXT_EVENT = re.compile(r"\}\s*,\s*(?=\{\s*\"(?:ph|name|cat)\")")
"""Where a list goes on after an event that cannot be read."""


class BadTrace(ValueError):
    """Not a trace; its text says why, to follow the file's name."""


class Readable(Protocol):
    """What is read from: a file, or what unpacks one."""

    def read(self, size: int = -1, /) -> bytes: ...


class EventStream:
    """The events of one file, and what stands around them.

    Attributes:
        header: the other keys of the object form, as they were met; complete after the last event.
        bad_events: events that were left out since they are not JSON.
        truncated: the file ended inside the list.
    """

    def __init__(self, stream: Readable) -> None:
        self.header: dict[str, Any] = {}
        self.bad_events = 0
        self.truncated = False
        self._stream = stream
        self._decoder = json.JSONDecoder(strict=False)  # names of kernels and paths hold control characters now and then
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._text = ""
        self._at = 0
        self._ended = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each event that is an object.

        Raises:
            BadTrace: the file is not JSON of either form, or one value has no end.
            OSError: the file cannot be read on; what else ``read`` raises goes through, too.
        """
        first = self._peek()
        if first == "[":
            yield from self._list()
        elif first == "{":
            self._at += 1
            yield from self._object()
        else:
            raise BadTrace("is empty" if first == "" else "is neither a JSON object nor a list")

    def _object(self) -> Iterator[dict[str, Any]]:
        found = False
        while (first := self._peek()) not in ("", "}"):
            if first != '"':
                raise BadTrace("is not JSON: a key is missing")
            key = self._value()
            if self._peek() != ":":
                raise BadTrace("is not JSON: a colon is missing")
            self._at += 1
            if key == "traceEvents":
                found = True
                if self._peek() != "[":
                    raise BadTrace("holds `traceEvents` that are no list")
                yield from self._list()
                if self.truncated:
                    return
            else:
                self._peek()
                try:
                    self.header[key] = self._value()
                except BadTrace:
                    if not found:
                        raise
                    self.truncated = True  # the events are all there
                    return
        if not found:
            raise BadTrace("is an object without `traceEvents`")

    def _list(self) -> Iterator[dict[str, Any]]:
        self._at += 1
        while (first := self._peek()) != "]":
            if first == "":
                self.truncated = True
                return
            try:
                event = self._value()
            except BadTrace:
                if not self._skip_to_next_event():
                    self.truncated = True
                    return
                self.bad_events += 1
                continue
            if isinstance(event, dict):
                yield event
        self._at += 1

    def _value(self) -> Any:
        """The value that starts here; reads on until it is whole."""
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._ended or (error.pos < len(self._text) - 16 and "Unterminated" not in error.msg):
                    raise BadTrace(f"is not JSON ({error.msg})") from None
            except RecursionError:
                raise BadTrace("is nested too deeply") from None
            else:
                # At the edge of the window a number may go on, or may have begun to (`1.5e`).
                margin = NUMBER_CHARS if isinstance(value, int | float) else 0
                if end + margin < len(self._text) or self._ended:
                    self._at = end
                    return value
            self._grow()

    def _peek(self) -> str:
        """The first character of the next value (spaces and commas passed over), "" at the end of the file."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None  # it matches nothing, too
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._grow()

    def _skip_to_next_event(self) -> bool:
        while True:
            if match := _NEXT_EVENT.search(self._text, self._at):
                self._at = match.end()
                return True
            if self._ended:
                return False
            self._grow()

    def _grow(self) -> None:
        if len(self._text) - self._at > MAX_VALUE_CHARS:
            raise BadTrace(f"holds one value of more than {MAX_VALUE_CHARS >> 20} million characters")
        try:
            piece = self._stream.read(PIECE_BYTES)
        except EOFError:  # a gzip file that was cut short: what came before is good
            piece = b""
        self._ended = not piece
        self._text = self._text[self._at :] + self._utf8.decode(piece, final=self._ended)
        self._at = 0
