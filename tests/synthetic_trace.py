"""Writes a Kineto trace of any size: training steps of one rank, with everything that such a trace is full of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LAYERS = 48
US_PER_LAYER = 400.0


def write_trace(path: Path, at_least_bytes: int, bare_list: bool = False) -> int:
    """Steps until the file is as large; returns their number."""
    head = "[\n" if bare_list else '{"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": [\n'
    tail = "\n]\n" if bare_list else '\n], "traceName": "synthetic"}\n'
    steps = written = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(head)
        while written < at_least_bytes:
            text = ",\n".join(json.dumps(event) for event in _step(steps))
            file.write((",\n" if steps else "") + text)
            written += len(text)
            steps += 1
        file.write(tail)
    return steps


def _step(number: int) -> list[dict[str, Any]]:
    begin = 1.7e15 + number * LAYERS * 2 * US_PER_LAYER
    events = [_span("user_annotation", f"ProfilerStep#{number}", begin, LAYERS * 2 * US_PER_LAYER, 1)]
    for layer in range(2 * LAYERS):
        start, thread = begin + layer * US_PER_LAYER, 1 if layer < LAYERS else 2
        link = (number * 2 * LAYERS + layer) * 10
        operator = "aten::linear" if thread == 1 else "autograd::engine::evaluate_function: MmBackward0"
        events.append(_span("cpu_op", operator, start, 90, thread, {"External id": link, "Input Dims": [[8192, 4096], [4096, 4096]]}))
        events += [
            _span("python_function", f"torch/nn/modules/linear.py(125): forward_{depth}", start, 80 - depth, thread) for depth in range(20)
        ]
        for kernel in range(4):
            events.append(_span("cuda_runtime", "cudaLaunchKernel", start + 10 * kernel, 6, thread, {"correlation": link + kernel}))
            name = (
                "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"
                if kernel
                else "void at::native::vectorized_elementwise_kernel<4>"
            )
            events.append(
                _span("kernel", name, start + 90 * kernel, 80, 7, {"stream": 7, "correlation": link + kernel, "grid": [64, 1, 1]})
            )
        events.append(_span("cuda_runtime", "cudaLaunchKernelExC", start + 50, 6, thread, {"correlation": link + 9}))
        collective = {
            "stream": 20, "correlation": link + 9, "Collective name": "allreduce", "In msg nelems": 4096, "dtype": "BFloat16",
            "Process Group Name": "1", "Process Group Ranks": "[0, 1, 2, 3]",
        }  # fmt: skip
        events.append(_span("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", start + 360, 40, 20, collective))
    return events


def _span(category: str, name: str, start: float, duration: float, tid: int, args: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": duration, "args": args or {}}
