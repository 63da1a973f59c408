"""The module names that ledger and recorder share (DESIGN section 3). One list, so that they cannot drift."""

EMBEDDING = "embedding"
POSITIONS = "positions"
EMBEDDING_NORM = "embedding_norm"
NORM = "norm"
HEAD = "head"
LOSS = "loss"

ATTENTION_NORM = "attention.norm"
QKV = "attention.qkv"
Q_DOWN = "attention.q_down"
Q_LATENT_NORM = "attention.q_latent_norm"
Q_UP = "attention.q_up"
KV_DOWN = "attention.kv_down"
KV_LATENT_NORM = "attention.kv_latent_norm"
KV_UP = "attention.kv_up"
Q_NORM = "attention.q_norm"
K_NORM = "attention.k_norm"
SINKS = "attention.sinks"
ROPE = "attention.rope"
CORE = "attention.core"
OUT = "attention.out"

MLP_NORM = "mlp.norm"
GATE_UP = "mlp.gate_up"
ACTIVATION = "mlp.activation"
DOWN = "mlp.down"

MOE_NORM = "moe.norm"
ROUTER = "moe.router"
DISPATCH = "moe.dispatch"
EXPERTS = "moe.experts"
COMBINE = "moe.combine"
SHARED_GATE_UP = "moe.shared.gate_up"
SHARED_ACTIVATION = "moe.shared.activation"
SHARED_DOWN = "moe.shared.down"

RESIDUAL = "residual"

MTP_NORM = "mtp.norm"
MTP_PROJECTION = "mtp.projection"

PIPELINE = "pipeline"
GRADIENTS = "gradients"
TOKEN_COUNT = "token_count"
GRADIENT_NORM = "gradient_norm"
OPTIMIZER = "optimizer"


PHASES = ("forward", "recompute", "backward_input", "backward_weight", "reduce", "optimizer")
"""Phases of a training step, in the order of their first row; ``reduce`` is what is summed behind the backward."""


def layer(index: int | str, part: str = "") -> str:
    """``layer(5, QKV)`` -> ``layers.5.attention.qkv``; ``layer(5)`` -> ``layers.5``."""
    return f"layers.{index}.{part}" if part else f"layers.{index}"
