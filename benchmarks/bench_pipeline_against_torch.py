"""How long is a pipelined training step, against torch.distributed.pipelining on the same model, schedule and micro-batches?

A dense model of 8 layers in float32 on 2 and 4 local ranks (gloo). tests/runtime/test_against_torch_pipelining.py compares the numbers.
Both sides take the gradient norm and an AdamW step. torch's executor runs twice: with a model as torch's users write it (fused
attention and norms), and with the runtime's own layers, which leaves the executors alone to compare. (Its split backward runs our
autograd functions again for their weights, so there zb-v is no fair comparison.) A figure is the fastest step after the first two,
between barriers, without a recorder; rounds alternate between the sides. A ratio is ours / torch's: below 1 we are faster; that of CPU
times tells less of other work on the machine.

    python benchmarks/bench_pipeline_against_torch.py [ROUNDS [STEPS]]
"""

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from meshwright.runtime.launch import run_ranks
from meshwright.runtime.proof_job import ProofJob
from meshwright.spec.layout import parse_layout
from meshwright.spec.model import Attention, LayerKind
from meshwright.spec.workload import Training
from proof_models import LLAMA
from side_by_side import run_ours
from torch_pipeline import run_torch_pipeline, run_torch_pipeline_of_own_layers

MODEL = replace(
    LLAMA, vocab_size=1024, hidden_size=128, ffn_size=352, layers=(LayerKind(),) * 8,
    attention=Attention(num_heads=8, num_kv_heads=8, head_dim=16),
)  # fmt: skip
SEQ, MICRO_BATCHES = 64, 8
WARM_UP = 2
LAYOUTS = (
    "pp=2:gpipe mb=2", "pp=2:1f1b mb=2", "pp=2:interleaved*2 mb=2", "pp=2:zb-v mb=2", "pp=2:dualpipe-v mb=2",
    "pp=4:1f1b mb=2", "pp=4:interleaved*2 mb=2", "pp=4:zb-v mb=2", "pp=4:dualpipe-v mb=2",
)  # fmt: skip


def measured(program, job: ProofJob) -> tuple[float, float]:
    """Seconds of the fastest step after the warm-up, by the clock (all ranks wait for each other, so one's is enough) and of all cores."""
    sides = run_ranks(program, job.layout.world_size, (job, 1, False), timeout_s=300)
    return min(sides[0].step_s[WARM_UP:]), min(map(sum, zip(*(side.cpu_s[WARM_UP:] for side in sides), strict=True)))


def main(rounds: int, steps: int) -> None:
    import torch

    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, torch {torch.__version__},"
        f" {MICRO_BATCHES} micro-batches, fastest of {rounds} x {steps} steps"
    )
    for text in LAYOUTS:
        layout = parse_layout(f"{text} dp=1x1")
        workload = Training(seq=SEQ, batch=MICRO_BATCHES * layout.mb)
        job = ProofJob(model=MODEL, workload=workload, layout=layout, precision="float32", steps=steps + WARM_UP, clip_norm=None)
        programs = (run_ours, run_torch_pipeline, run_torch_pipeline_of_own_layers)
        rows = [[figure for program in programs for figure in measured(program, job)] for _ in range(rounds)]
        ours, our_cpu, theirs, their_cpu, executor, executor_cpu = (min(column) for column in zip(*rows, strict=True))
        print(
            f"{layout.world_size} ranks  {text:24} ours {ours * 1e3:6.1f} ms  torch {theirs * 1e3:6.1f} ms  ratio {ours / theirs:.2f}"
            f" (CPU {our_cpu / their_cpu:.2f})   its executor with our layers {executor * 1e3:6.1f} ms  ratio {ours / executor:.2f}"
            f" (CPU {our_cpu / executor_cpu:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main(*(int(word) for word in (*sys.argv[1:], *("3", "6")[len(sys.argv) - 1 :])))
