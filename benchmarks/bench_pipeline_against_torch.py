"""How long is a pipelined training step, against torch.distributed.pipelining on the same model, schedule and micro-batches?

A dense model of 8 layers in float32 on 2 and 4 local ranks (gloo). tests/runtime/test_against_torch_pipelining.py compares the numbers.
Both sides take the gradient norm and an AdamW step. torch's executor runs twice: with a model as torch's users write it (fused
attention and norms), and with the runtime's own layers, which leaves the executors alone to compare. (Its split backward runs our
autograd functions again for their weights, so there zb-v is no fair comparison.) A figure is the fastest step after the first two,
between barriers, without a recorder; rounds alternate between the sides. A ratio is ours / torch's: below 1 we are faster; that of CPU
times tells less of other work on the machine.

    python benchmarks/bench_pipeline_against_torch.py [ROUNDS [STEPS]]
"""

import sys

from fastest_step import WARM_UP, dense_model, machine, measured

from meshwright.runtime.proof_job import ProofJob
from meshwright.spec.layout import parse_layout
from meshwright.spec.workload import Training
from side_by_side import run_ours
from torch_pipeline import run_torch_pipeline, run_torch_pipeline_of_own_layers

MODEL = dense_model(num_layers=8)
SEQ, MICRO_BATCHES = 64, 8
LAYOUTS = (
    "pp=2:gpipe mb=2", "pp=2:1f1b mb=2", "pp=2:interleaved*2 mb=2", "pp=2:zb-v mb=2", "pp=2:dualpipe-v mb=2",
    "pp=4:1f1b mb=2", "pp=4:interleaved*2 mb=2", "pp=4:zb-v mb=2", "pp=4:dualpipe-v mb=2",
)  # fmt: skip


def main(rounds: int, steps: int) -> None:
    print(f"{machine()}, {MICRO_BATCHES} micro-batches, fastest of {rounds} x {steps} steps")
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
