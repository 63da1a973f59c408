"""The kinds of file that can be read. Each reader knows its kind by content, never by name alone."""

from __future__ import annotations

from meshwright.diagnose.readers import recording
from meshwright.diagnose.readers.reader import Reader

READERS: tuple[Reader, ...] = (recording.READER,)
"""In the order in which they are asked; the first that recognises a file reads it."""
