"""Files as the readers see them: folders walked, gz and tar unpacked, every read bounded.

What is read may come from anywhere, so: only regular files are opened (a pipe would block), nothing is followed out of a folder,
and what unpacks to far more than it was is refused (a gzip bomb).
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

from meshwright.recording.progress import is_progress

HEAD_BYTES = 64 * 1024
"""What a reader sees of a file to tell what it is."""

MAX_RATIO = 200
"""Traces and logs shrink 10 to 40 times under gzip; deflate cannot do more than 1,032 (zlib's technical notes), which only bombs reach."""

RATIO_FROM_BYTES = 64 * 1024 * 1024
"""Below this size a high ratio harms nobody."""

MAX_FILES = 200_000
"""Of one call: two files of each rank of the largest jobs."""


class Unreadable(Exception):
    """A file that cannot be used; its text says why, to follow the file's name."""


@dataclass(frozen=True)
class Source:
    """One file, or one member of an archive.

    Attributes:
        name: to show. packed_bytes: its size where it lies. opened: a new stream of its plain bytes.
    """

    name: str
    packed_bytes: int
    opened: Callable[[], IO[bytes]]

    @cached_property
    def head(self) -> bytes:
        """The first HEAD_BYTES, unpacked. Raises Unreadable."""
        return self._read(HEAD_BYTES)

    def read(self, limit_bytes: int) -> bytes:
        """All of it. Raises Unreadable, also where there is more than ``limit_bytes``."""
        data = self._read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise Unreadable(f"is larger than {limit_bytes >> 20:,} MiB, which no file of its kind is")
        return data

    def stream(self) -> IO[bytes]:
        """Its bytes in order; the caller closes it, and meets OSError, EOFError or Unreadable where they end badly."""
        try:
            return self.opened()
        except OSError as error:
            raise Unreadable(f"cannot be read: {error.strerror or error}") from None

    def _read(self, count: int) -> bytes:
        try:
            with self.stream() as stream:
                # In parts: a buffered stream makes room for all that is asked for before it reads.
                parts = []
                while count > 0 and (part := stream.read(min(count, 1 << 20))):
                    parts.append(part)
                    count -= len(part)
                return b"".join(parts)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise Unreadable("is a torn or damaged gzip file") from None
        except OSError as error:
            raise Unreadable(f"cannot be read: {error.strerror or error}") from None


class _Guarded(io.RawIOBase):
    """A decompressing stream that stops where its output is out of proportion to its input."""

    def __init__(self, packed: IO[bytes], packed_bytes: int) -> None:
        self._packed, self._inner = packed, gzip.GzipFile(fileobj=packed)
        self._left = max(RATIO_FROM_BYTES, MAX_RATIO * packed_bytes)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._inner.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise Unreadable(f"unpacks to more than {MAX_RATIO} times its size: not a trace, a gzip bomb")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        self._packed.close()  # GzipFile leaves it open
        super().close()


def sources(paths: Sequence[Path]) -> Iterator[Source | tuple[str, str]]:
    """Every file below ``paths``, in order of name, archives unpacked; (name, problem) for one that cannot be opened."""
    count = 0
    for path in paths:
        for file in _files(path):
            for source in _unpacked_file(file):
                count += 1
                if count > MAX_FILES:
                    yield (str(path), f"holds more than {MAX_FILES:,} files; the rest is left out")
                    return
                yield source


def _files(path: Path) -> Iterator[Path]:
    if not os.path.isdir(path):  # Path's raises for names that are too long
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith(".") and not is_progress(name):  # what `watch` reads lies beside recordings
                yield Path(folder) / name


def _unpacked_file(path: Path) -> Iterator[Source | tuple[str, str]]:
    try:
        if not path.is_file():
            yield (str(path), "is not a regular file" if path.exists() else "does not exist")
            return
        yield from _unpacked(Source(str(path), path.stat().st_size, lambda: path.open("rb")))
    except OSError as error:
        yield (str(path), f"cannot be read: {error.strerror or error}")


def _unpacked(source: Source) -> Iterator[Source | tuple[str, str]]:
    """The source, or what it holds."""
    try:
        if source.head.startswith(b"\x1f\x8b"):
            source = Source(source.name, source.packed_bytes, _gunzip(source))
        is_tar = source.head[257:262] == b"ustar"
    except Unreadable as problem:
        yield (source.name, str(problem))
        return
    if is_tar:
        yield from _members(source)
    else:
        yield source


def _gunzip(packed: Source) -> Callable[[], IO[bytes]]:
    return lambda: io.BufferedReader(_Guarded(packed.stream(), packed.packed_bytes), 1 << 20)


def _members(archive: Source) -> Iterator[Source | tuple[str, str]]:
    """An archive's files, one after the other, each kept (on disk if it is large) only while it is used."""
    try:
        with archive.stream() as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                inner = tar.extractfile(member) if member.isfile() else None
                if inner is None:
                    continue
                with tempfile.SpooledTemporaryFile(max_size=RATIO_FROM_BYTES) as kept:
                    while chunk := inner.read(1 << 20):
                        kept.write(chunk)
                    yield from _unpacked(Source(f"{archive.name}:{member.name}", member.size, _again(kept)))
    except Unreadable as problem:
        yield (archive.name, str(problem))
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        yield (archive.name, f"is a torn or damaged archive ({error})")


def _again(kept: IO[bytes]) -> Callable[[], IO[bytes]]:
    """Streams of one temporary file, which stays open when a stream is closed; one at a time."""

    def opened() -> IO[bytes]:
        kept.seek(0)
        return io.BufferedReader(_Unclosed(kept), 1 << 20)

    return opened


class _Unclosed(io.RawIOBase):
    def __init__(self, inner: IO[bytes]) -> None:
        self._inner = inner

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
