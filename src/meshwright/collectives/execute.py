"""Run step lists on local processes, through the runtime's own process; no torch in this one."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.collectives.algorithms import StepList
from meshwright.errors import InputError, Mistake, NoAnswer

PROGRAM = "meshwright.runtime.execute_collectives"
ELEMENT_BYTES = 8
"""float64: what is summed must tell another order of adding from a fault."""
MAX_RANKS = 32
MAX_PAYLOAD_BYTES = 16 << 20
"""Every rank of an all_to_all holds places for all ranks' blocks; 8 ranks then take 1 GiB."""
TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Executed:
    """What the ranks found: bytes each sent, the largest difference from torch's collective, and whether that is equal."""

    sent_bytes: tuple[int, ...]
    max_error: float
    equal: bool


def chunk_elements(steps: StepList, payload_bytes: float) -> int:
    """Elements of a chunk: the payload, padded until every chunk has the same whole number."""
    return max(1, math.ceil(steps.chunk_bytes(payload_bytes) / ELEMENT_BYTES))


def padded_bytes(steps: StepList, payload_bytes: float) -> int:
    """The payload that is run, padding included."""
    pieces = steps.chunks // steps.ranks if steps.op == "all_to_all" else steps.chunks
    return pieces * chunk_elements(steps, payload_bytes) * ELEMENT_BYTES


def execute(lists: Sequence[StepList], payload_bytes: float) -> list[Executed]:
    """Run each list on its ranks (all lists have the same number of them) against torch's own collective.

    Raises:
        InputError: torch is not installed, too many ranks, too large a payload.
        NoAnswer: the ranks failed; with what they printed.
    """
    ranks = lists[0].ranks
    _check(ranks, payload_bytes)
    jobs = [{"op": s.op, "chunks": s.chunks, "chunk_elements": chunk_elements(s, payload_bytes), "rows": s.rows()} for s in lists]
    request = json.dumps({"ranks": ranks, "collectives": jobs})
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(entry for entry in sys.path if entry))
    command = [sys.executable, "-m", PROGRAM]
    try:
        done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"{ranks} ranks did not end within {TIMEOUT_S:g} s") from error
    if done.returncode:
        raise NoAnswer(f"running the collectives failed:\n{done.stderr.strip()}")
    answers = json.loads(done.stdout)["collectives"]
    return [Executed(tuple(a["sent_bytes"]), a["max_error"], a["equal"]) for a in answers]


def _check(ranks: int, payload_bytes: float) -> None:
    mistakes = []
    if importlib.util.find_spec("torch") is None:
        hint = 'pip install "meshwright[runtime]"'
        mistakes.append(Mistake("command line", "--run", None, "torch 2.13 or later", hint, "needs torch, which is not installed"))
    if ranks > MAX_RANKS:
        mistakes.append(Mistake("command line", "--ranks", ranks, f"at most {MAX_RANKS} with --run", problem="is too many for one machine"))
    if payload_bytes > MAX_PAYLOAD_BYTES:
        legal = f"at most {MAX_PAYLOAD_BYTES >> 20}MiB with --run"
        mistakes.append(Mistake("command line", "--size", payload_bytes, legal, problem="is too large for one machine"))
    if mistakes:
        raise InputError(mistakes)
