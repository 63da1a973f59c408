"""The runtime's proof program as a process of its own: requests go in as folders, answers come back as lines.

The program imports torch; nothing here does. It stays warm, so that a second proof costs no import.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Mistake

PROGRAM = "meshwright.runtime.prove_program"
GRACE_S = 150.0
"""On top of a job's own limit: importing torch (30 s on a busy machine with a cold cache), the one-device run, collecting failures."""


def require_torch(what: str = "a proof") -> None:
    """InputError in one line where torch is not installed, which ``what`` runs on."""
    if importlib.util.find_spec("torch") is None:
        problem = f"is not installed, and {what} runs on it: pip install 'meshwright[runtime]'"
        raise InputError([Mistake("", "torch", None, "", problem=problem)])


class ProofProgram:
    """The process, started at the first request; use as a context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, folder: Path, request: dict[str, Any], timeout_s: float, times: int = 1) -> dict[str, Any]:
        """Run one job in ``folder``; the answer of runtime/prove_program.py, or one of status "died" or "late".

        Args:
            timeout_s: of each of the ``times`` runs that the request asks for.
        """
        limit_s = times * timeout_s + GRACE_S
        (folder / "job.pickle").write_bytes(pickle.dumps({**request, "timeout_s": timeout_s}))
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps({"folder": str(folder)}).encode() + b"\n")
            process.stdin.flush()
            line = _read_line(process.stdout, limit_s)
        except BrokenPipeError:
            line = b""
        except BaseException:  # also Ctrl-C: nobody waits for the answer any more
            self.close()
            raise
        if line is None:
            self.close()
            return {"status": "late", "message": f"no answer within {limit_s:g} s"}
        if not line:
            code = process.wait()
            self.close()
            return {"status": "died", "message": f"the process of the proof ended with code {code}; its standard error has more"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
            environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
            command = [sys.executable, "-m", PROGRAM]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        return self._process

    def close(self) -> None:
        """End the process; its ranks end with it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def __enter__(self) -> ProofProgram:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _read_line(pipe: Any, limit_s: float) -> bytes | None:
    """One line; b"" where the pipe was closed, None where nothing came in time."""
    end = time.monotonic() + limit_s
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return None
        piece = os.read(pipe.fileno(), 1 << 16)
        if not piece:
            return b""
        line += piece
    return line
