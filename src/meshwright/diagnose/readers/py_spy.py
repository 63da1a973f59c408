"""py-spy dumps: the stacks of one process or of several, one after the other, as ``py-spy dump`` prints them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshwright.diagnose.readers.reader import Reader
from meshwright.diagnose.source import Source, Unreadable
from meshwright.diagnose.stacks import Stack

MAX_BYTES = 1 << 26
"""A process prints a few hundred KB at most."""

PROCESS = re.compile(r"^Process (\d+): (.*)$", re.MULTILINE)
THREAD = re.compile(r'^Thread (\S+) \(([\w+]+)\)(?:: "([^"]*)")?$')
FRAME = re.compile(r"^    (\S.* \(.*\))$")


def recognises(source: Source) -> bool:
    return re.search(rb"^Process \d+: .*\n(?:.*\n)?Python v\d", source.head, re.MULTILINE) is not None


def read(source: Source) -> Iterator[Stack]:
    """The main thread of each process. Raises Unreadable."""
    text = source.read(MAX_BYTES).decode("utf-8", errors="replace")
    starts = [match.start() for match in PROCESS.finditer(text)]
    stacks = [_process(text[start:end], source.name, len(starts) == 1) for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    found = [stack for stack in stacks if stack is not None]
    if not found:
        raise Unreadable("is a py-spy dump without any thread")
    yield from found


def _process(text: str, source: str, alone: bool) -> Stack | None:
    lines = text.splitlines()
    match = PROCESS.match(lines[0])
    command = match[2] if match else ""
    threads: list[tuple[str, str, list[str]]] = []
    for line in lines:
        thread, frame = THREAD.match(line), FRAME.match(line)
        if thread is not None:
            threads.append((thread[3] or "", thread[2], []))
        elif frame is not None and threads:
            threads[-1][2].append(frame[1])
    main = next((each for each in threads if each[0] == "MainThread"), threads[0] if threads else None)
    if main is None:
        return None
    holding = tuple(frames[0] for name, state, frames in threads if "gil" in state and name != main[0] and frames)
    return Stack(
        rank=_rank(source if alone else "", command),
        source=source,
        process=command[:200],
        frames=tuple(main[2]),
        state=main[1],
        others=holding,
    )


def _rank(name: str, command: str) -> int | None:
    """From the command line (``--rank=3``), or from the name of a file that holds one process."""
    told = re.search(r"--(?:global[-_])?rank[= ](\d+)", command) or re.search(
        r"rank[_\-.]?(\d+)", re.split(r"[/:\\]", name)[-1], re.IGNORECASE
    )
    return int(told[1]) if told else None


READER = Reader(kind=("py-spy dump", "py-spy dumps"), recognises=recognises, read=read)
