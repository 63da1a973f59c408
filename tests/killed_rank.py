"""A program of a rank that is killed in the middle of a proof."""

import os
import signal
from typing import Any

import torch.distributed as dist

from meshwright.runtime import train_step
from meshwright.runtime.proof_job import Experts, ProofJob, RankResult, run_proof_rank


def dies_in_its_second_step(job: ProofJob, seed: int, experts: Experts) -> RankResult:
    """Rank 1; the kernel's out-of-memory killer sends the same signal."""
    right, begun = train_step.Training.step, []

    def step(self: Any, batches: Any) -> Any:
        begun.append(None)
        if dist.get_rank() == 1 and len(begun) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return right(self, batches)

    train_step.Training.step = step
    return run_proof_rank(job, seed, experts)
