"""How long is a training step of the runtime, against torch's own FSDP2 and DTensor on the same model and plan?

A dense model of 4 layers in float32 on 2, 4 and 8 local ranks (gloo): tensor parallelism with and without sequence parallelism, FSDP2, and
both together; torch's side uses parallelize_module, loss_parallel and fully_shard. tests/runtime/test_against_torch.py
compares the numbers and
the bytes. A figure is the fastest step after the first two, between barriers, without a recorder; rounds alternate between the two sides,
so that what else the machine does hits both. The last column is ours / torch's: below 1 we are faster.

    python benchmarks/bench_against_torch.py [ROUNDS [STEPS]]
"""

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from meshwright.runtime.launch import run_ranks  # noqa: E402
from meshwright.runtime.proof_job import ProofJob  # noqa: E402
from meshwright.spec.layout import parse_layout  # noqa: E402
from meshwright.spec.model import Attention, LayerKind  # noqa: E402
from meshwright.spec.workload import Training  # noqa: E402
from proof_models import LLAMA  # noqa: E402
from side_by_side import run_ours, run_torch  # noqa: E402

MODEL = replace(
    LLAMA, vocab_size=1024, hidden_size=128, ffn_size=352, layers=(LayerKind(),) * 4,
    attention=Attention(num_heads=8, num_kv_heads=8, head_dim=16),
)  # fmt: skip
SEQ, BATCH = 64, 8
WARM_UP = 2
LAYOUTS = (
    "tp=2 dp=1x1 mb=8", "tp=2 sp dp=1x1 mb=8", "dp=1x2 zero=3 mb=4", "tp=4 dp=1x1 mb=8", "tp=2 dp=1x2 zero=3 mb=4",
    "tp=2 sp dp=1x2 zero=3 mb=4", "dp=1x8 zero=3 mb=1", "tp=2 dp=1x4 zero=3 mb=2", "tp=4 sp dp=1x2 zero=3 mb=4",
)  # fmt: skip


def fastest_s(program, job: ProofJob) -> float:
    """Of the steps after the warm-up; all ranks wait for each other, so one rank's clock is enough."""
    return min(run_ranks(program, job.layout.world_size, (job, 1, False), timeout_s=300)[0].step_s[WARM_UP:])


def main(rounds: int, steps: int) -> None:
    import torch

    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, torch {torch.__version__},"
        f" fastest of {rounds} x {steps} steps"
    )
    for text in LAYOUTS:
        layout = parse_layout(text)
        job = ProofJob(
            model=MODEL, workload=Training(seq=SEQ, batch=BATCH), layout=layout, precision="float32", steps=steps + WARM_UP, clip_norm=None
        )
        times = [(fastest_s(run_ours, job), fastest_s(run_torch, job)) for _ in range(rounds)]
        ours, theirs = (min(column) for column in zip(*times, strict=True))
        print(
            f"{layout.world_size} ranks  {text:28} ours {ours * 1e3:7.1f} ms  torch {theirs * 1e3:7.1f} ms  ratio {ours / theirs:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main(*(int(word) for word in (*sys.argv[1:], *("3", "6")[len(sys.argv) - 1 :])))
