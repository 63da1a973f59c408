"""What happens once per optimizer step beside data parallelism's reductions (DESIGN section 4.1, last rows), and what the
pipeline sends for each micro-batch."""

from __future__ import annotations

from meshwright.arithmetic import Num
from meshwright.ledger.parameters import held_numel, local, shard_numel
from meshwright.ledger.rows import Phase, Row
from meshwright.ledger.sizes import Sizes
from meshwright.ledger.writer import Writer
from meshwright.spec import names
from meshwright.spec.parameters import embedding_parameters
from meshwright.units import DTYPE_BYTES


def token_count(s: Sizes, ranks: Num) -> list[Row]:
    """Labels that count, over all data: the loss is divided by their sum before the first backward."""
    w = Writer(s)
    tensor = s.tensor("1", dtype="int64")
    w.collective("forward", names.TOKEN_COUNT, "all_reduce", "dp_cp", ranks, 8, tensor, tensor,
                 why="the loss is a mean over the tokens of the whole batch")  # fmt: skip
    return w.rows


def gradient_norm(s: Sizes, ranks: Num) -> list[Row]:
    """One scalar: each rank adds the squares of what it holds, divided by the number of copies."""
    w = Writer(s)
    tensor = s.tensor("1", dtype=s.stat)
    w.collective("reduce", names.GRADIENT_NORM, "all_reduce", "world", ranks, s.stat_bytes, tensor, tensor,
                 why="the norm is over all parameters, wherever they are")  # fmt: skip
    return w.rows


def tied_embedding(s: Sizes) -> list[Row]:
    """First and last stage hold a copy of the embedding and sum its gradient: on the shards under ZeRO."""
    w = Writer(s)
    table = [local(p, s) for p in embedding_parameters(s.model) if p.module == names.EMBEDDING]
    numel = shard_numel(table, s.layout.dp_shard * s.layout.cp) if s.layout.zero else held_numel(table)
    dtype = s.precision.reduce
    tensor = s.tensor("P/fsdp" if s.layout.zero else "P", dtype=dtype)
    w.collective("reduce", names.EMBEDDING, "all_reduce", "embedding", 2, numel * int(DTYPE_BYTES[dtype]), tensor, tensor,
                 why="both ends of the pipeline hold the embedding and sum its gradient")  # fmt: skip
    return w.rows


def mirrored_stages(s: Sizes, numel: Num) -> list[Row]:
    """DualPipe: ranks i and p-1-i hold the same two stages, and sum their gradients."""
    w = Writer(s)
    dtype = s.precision.reduce
    tensor = s.tensor("P/fsdp" if s.layout.zero else "P", dtype=dtype)
    w.collective("reduce", names.GRADIENTS, "all_reduce", "mirror", 2, numel * int(DTYPE_BYTES[dtype]), tensor, tensor,
                 why="the two directions run on two copies of each stage")  # fmt: skip
    return w.rows


def expert_loads(s: Sizes, data_ranks: Num) -> list[Row]:
    """Auxiliary-loss-free balancing moves each expert's bias by its load over all tokens (arXiv 2408.15664)."""
    w = Writer(s)
    assert s.model.moe is not None
    tensor = s.tensor("E", dtype="int64")
    axis, ranks = ("dp_cp_tp", data_ranks * s.layout.tp) if s.layout.sp else ("dp_cp", data_ranks)
    w.collective("reduce", names.ROUTER, "all_reduce", axis, ranks, 8 * s.model.moe.num_experts, tensor, tensor,
                 why="the bias of an expert follows its load over the whole batch")  # fmt: skip
    return w.rows


def mirrored_loads(s: Sizes) -> list[Row]:
    """DualPipe: half of the micro-batches pass each copy of a stage, so the loads of both are summed."""
    w = Writer(s)
    assert s.model.moe is not None
    tensor = s.tensor("E", dtype="int64")
    w.collective("reduce", names.ROUTER, "all_reduce", "mirror", 2, 8 * s.model.moe.num_experts, tensor, tensor,
                 why="the two directions run on two copies of each stage")  # fmt: skip
    return w.rows


def optimizer(s: Sizes, numel: Num) -> list[Row]:
    """AdamW on this rank's share: reads gradient, master and moments, writes master, moments and the weight."""
    w = Writer(s)
    precision = s.precision
    gradient, weight = int(DTYPE_BYTES[precision.gradient]), int(DTYPE_BYTES[precision.weight])
    tensor = s.tensor("P/fsdp" if s.layout.zero else "P", dtype=precision.weight)
    w.memory("optimizer", names.OPTIMIZER, tensor, tensor, numel * (gradient + precision.state_bytes),
             numel * (precision.state_bytes + weight), why="AdamW, elementwise")  # fmt: skip
    return w.rows


def boundary(s: Sizes, phase: Phase, received: int, sent: int) -> list[Row]:
    """Activations (or their gradients) of one micro-batch between neighbouring chunks; sharded over tp with sp."""
    w = Writer(s)
    stream = s.stream
    payload = s.bytes(stream)
    for op, times in (("recv", received), ("send", sent)):
        if times:
            w.collective(phase, names.PIPELINE, op, "pp", 2, payload, stream, stream, times,
                         why="the next layers are on another stage" if phase == "forward" else "gradients go the other way")  # fmt: skip
    return w.rows
