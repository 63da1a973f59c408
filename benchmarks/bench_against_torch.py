"""How long is a training step of the runtime, against torch's own FSDP2 and DTensor on the same model and plan?

A dense model of 4 layers in float32 on 2, 4 and 8 local ranks (gloo): tensor parallelism with and without sequence parallelism,
FSDP2, and both together; torch's side uses parallelize_module, loss_parallel and fully_shard. tests/runtime/test_against_torch.py
compares the numbers and the bytes. A figure is the fastest step after the first two, between barriers, without a recorder; rounds
alternate between the two sides, so that what else the machine does hits both. A ratio is ours / torch's: below 1 we are faster;
that of CPU times tells less of other work.

    python benchmarks/bench_against_torch.py [ROUNDS [STEPS]]
"""

import sys

from fastest_step import WARM_UP, dense_model, machine, measured

from meshwright.runtime.proof_job import ProofJob
from meshwright.spec.layout import parse_layout
from meshwright.spec.workload import Training
from side_by_side import run_ours, run_torch

MODEL = dense_model(num_layers=4)
SEQ, BATCH = 64, 8
LAYOUTS = (
    "tp=2 dp=1x1 mb=8", "tp=2 sp dp=1x1 mb=8", "dp=1x2 zero=3 mb=4", "tp=4 dp=1x1 mb=8", "tp=2 dp=1x2 zero=3 mb=4",
    "tp=2 sp dp=1x2 zero=3 mb=4", "dp=1x8 zero=3 mb=1", "tp=2 dp=1x4 zero=3 mb=2", "tp=4 sp dp=1x2 zero=3 mb=4",
)  # fmt: skip


def main(rounds: int, steps: int) -> None:
    print(f"{machine()}, fastest of {rounds} x {steps} steps")
    for text in LAYOUTS:
        layout = parse_layout(text)
        job = ProofJob(
            model=MODEL, workload=Training(seq=SEQ, batch=BATCH), layout=layout, precision="float32", steps=steps + WARM_UP, clip_norm=None
        )
        times = [(*measured(run_ours, job), *measured(run_torch, job)) for _ in range(rounds)]
        ours, our_cpu, theirs, their_cpu = (min(column) for column in zip(*times, strict=True))
        print(
            f"{layout.world_size} ranks  {text:28} ours {ours * 1e3:6.1f} ms  torch {theirs * 1e3:6.1f} ms  ratio {ours / theirs:.2f}"
            f"   CPU of all ranks {our_cpu * 1e3:6.1f} and {their_cpu * 1e3:6.1f} ms, ratio {our_cpu / their_cpu:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main(*(int(word) for word in (*sys.argv[1:], *("3", "6")[len(sys.argv) - 1 :])))
