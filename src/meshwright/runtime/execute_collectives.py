"""Runs step lists on local ranks against torch's collectives: JSON on stdin, JSON on stdout. Started as a process of its own.

    in   {"ranks": 4, "collectives": [{"op": "all_reduce", "chunks": 4, "chunk_elements": 256, "rows": [[0, 0, 1, 0, true], ...]}]}
    out  {"collectives": [{"sent_bytes": [per rank], "max_error": 1e-16, "equal": true}]}

Each list is run with float64, which must agree up to the order of adding, and with int64, which must agree exactly.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from meshwright.errors import MeshwrightError
from meshwright.runtime.collectives import Steps, execute
from meshwright.runtime.launch import run_ranks

TIMEOUT_S = 120.0
"""Of all lists together; 8 ranks on 2 cores take 1 to 2 s for all algorithms at 1 MiB."""


def run_all(jobs: list[dict[str, Any]]) -> list[tuple[int, float, bool]]:
    """On each rank: (bytes sent, largest error, equal) of each list in turn."""
    results = []
    for seed, job in enumerate(jobs):
        steps = Steps(job["op"], job["chunks"], [tuple(row) for row in job["rows"]])
        real = execute(steps, job["chunk_elements"], torch.float64, seed)
        whole = execute(steps, job["chunk_elements"], torch.int64, seed)
        results.append((real.sent_bytes, max(real.max_error, whole.max_error), real.equal and whole.equal))
    return results


def main() -> None:
    """Read the request, run it, and print the answer."""
    request = json.load(sys.stdin)
    try:
        by_rank = run_ranks(run_all, request["ranks"], (request["collectives"],), timeout_s=TIMEOUT_S)
    except MeshwrightError as error:
        sys.exit(str(error))  # to stderr, with code 1
    answers = [
        {"sent_bytes": [r[0] for r in ranks], "max_error": max(r[1] for r in ranks), "equal": all(r[2] for r in ranks)}
        for ranks in zip(*by_rank, strict=True)
    ]
    print(json.dumps({"collectives": answers}))  # noqa: T201


if __name__ == "__main__":
    main()
