"""Layers of each pipeline stage of a published run that does not print them: as its framework splits a model by default."""

from __future__ import annotations

from meshwright.spec.model import Model
from meshwright.validate.runs import Run


def stages_of_run(run: Run, model: Model, chunks: int) -> tuple[int, ...] | None:
    """Layers of each chunk in model order, None for equal ones."""
    if chunks > 1 and run.says("nanotron", "source"):
        return cost_balanced_stages(len(model.layers), head_cost(model), chunks)
    return stages_of(len(model.layers), chunks)


def stages_of(layers: int, chunks: int) -> tuple[int, ...] | None:
    """Layers of each chunk: even if they divide; else as even as they go with embedding and head counted as a layer each, which is
    how Megatron-core (--account-for-embedding-in-pipeline-split) and Llama 3 (arXiv 2407.21783, section 3.3.2) balance stages."""
    if layers % chunks == 0 or chunks == 1:
        return None
    most, heavy = divmod(layers + 2, chunks)
    sizes = [most] * chunks
    for index in range(heavy):  # the rest goes to chunks away from the ends
        sizes[(1 + index) % chunks] += 1
    sizes[0] -= 1
    sizes[-1] -= 1
    return tuple(max(size, 0) for size in sizes) if sum(max(size, 0) for size in sizes) == layers else None


def head_cost(model: Model) -> float:
    """Products of the head over those of a layer as nanotron counts them: of a layer 4 widths of all heads and 3 of the MLP."""
    attention = model.attention
    layer = 4 * attention.num_heads * attention.head_dim + 3 * model.ffn_size
    return model.vocab_size / layer


def cost_balanced_stages(layers: int, head: float, chunks: int) -> tuple[int, ...] | None:
    """nanotron's rule (models/base.py, build_model, 2024): blocks in order, and the next stage begins once a stage has passed its
    share of the cost. ``head`` is the cost of the head in layers. None where that leaves the stages equal, or some empty."""
    share = (layers + head) / chunks
    sizes = [0] * chunks
    stage = 0
    for layer in range(1, layers + 1):
        sizes[stage] += 1
        if layer > share * (stage + 1):
            stage += 1
    if len(set(sizes)) == 1 or 0 in sizes[:-1]:
        return None
    return tuple(sizes)
