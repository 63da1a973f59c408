"""What both benchmarks against torch share: a small dense model, and the fastest step of a program on local ranks."""

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from meshwright.runtime.launch import run_ranks
from meshwright.runtime.proof_job import ProofJob
from meshwright.spec.model import Attention, LayerKind, Model
from proof_models import LLAMA

WARM_UP = 2
"""Steps that do not count."""


def dense_model(num_layers: int) -> Model:
    return replace(
        LLAMA, vocab_size=1024, hidden_size=128, ffn_size=352, layers=(LayerKind(),) * num_layers,
        attention=Attention(num_heads=8, num_kv_heads=8, head_dim=16),
    )  # fmt: skip


def machine() -> str:
    """Cores, load and versions, for the first line of the output."""
    import torch

    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, torch {torch.__version__}"


def measured(program, job: ProofJob) -> tuple[float, float]:
    """Seconds of the fastest step after the warm-up, by the clock (all ranks wait for each other, so one's is enough) and of all cores."""
    sides = run_ranks(program, job.layout.world_size, (job, 1, False), timeout_s=300)
    return min(sides[0].step_s[WARM_UP:]), min(map(sum, zip(*(side.cpu_s[WARM_UP:] for side in sides), strict=True)))
