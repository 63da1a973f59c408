"""Multi-head latent attention's projections (DeepSeek-V2, arXiv 2405.04434, section 2.1).

The down projections (to the latents, Cq and Ckv wide) are small: every tp rank holds them whole and applies them to the
tokens of its stream. The latents enter the column-parallel up projections together, as one tensor of width C = Cq + Ckv.
Without a query latent, q is projected from the stream itself and Cq = D.
"""

from __future__ import annotations

from meshwright.ledger.blocks import attention_core as core
from meshwright.ledger.blocks import pairs
from meshwright.ledger.writer import Saves, Writer
from meshwright.spec import names


def project(w: Writer) -> None:
    """Down, norm, gather (sp), up."""
    s = w.sizes
    mla, D = s.model.attention.mla, s.model.hidden_size
    assert mla is not None
    stream, axes = s.stream_tokens, s.stream_axes
    x = s.tensor(f"B/dp, S/{axes}, D")
    w_in: Saves = (("linear_input", s.bytes(x)),)
    if mla.q_lora_rank is not None:
        cq = s.tensor(f"B/dp, S/{axes}, Cq")
        w.matmul("forward", names.Q_DOWN, x, cq, stream, mla.q_lora_rank, D, saves=w_in, why="to the query latent; held whole over tp")
        _latent_norm(w, names.Q_LATENT_NORM, mla.q_lora_rank)
        w_in = ()
    ckv = s.tensor(f"B/dp, S/{axes}, Ckv")
    w.matmul("forward", names.KV_DOWN, x, ckv, stream, mla.kv_lora_rank + mla.qk_rope_head_dim, D, saves=w_in,
             why="to the latent of keys and values, and the shared rotary key; held whole over tp")  # fmt: skip
    _latent_norm(w, names.KV_LATENT_NORM, mla.kv_lora_rank)
    pairs.enter(w, names.Q_UP, "C")
    q, kv = s.tensor("B/dp, S/cp, QH/tp"), s.tensor("B/dp, S/cp, KVH/tp")
    latents = s.bytes(s.tensor(f"B/dp, S/{axes}, Ckv")) + s.bytes(s.tensor(f"B/dp, S/{axes}, Cq")) * (mla.q_lora_rank is not None)
    w.matmul("forward", names.Q_UP, s.tensor("B/dp, S/cp, Cq"), q, s.tokens, s.local_shape(q)[2], mla.q_lora_rank or D,
             saves=(("latent", latents),), why="column parallel: each tp rank computes its heads' queries")  # fmt: skip
    w.matmul("forward", names.KV_UP, s.tensor("B/dp, S/cp, Ckv"), kv, s.tokens, s.local_shape(kv)[2], mla.kv_lora_rank,
             saves=core.received_unrotated(s), why="column parallel: each tp rank computes its heads' keys and values")  # fmt: skip


def project_backward(w: Writer) -> None:
    """Up, scatter or sum, norm, down."""
    s = w.sizes
    mla, D = s.model.attention.mla, s.model.hidden_size
    assert mla is not None
    q, kv = s.tensor("B/dp, S/cp, QH/tp"), s.tensor("B/dp, S/cp, KVH/tp")
    w.linear_backward(names.KV_UP, s.tensor("B/dp, S/cp, Ckv"), kv, s.tokens, s.local_shape(kv)[2], mla.kv_lora_rank,
                      between=lambda: pairs.regather(w, names.Q_UP, "C"))  # fmt: skip
    w.linear_backward(names.Q_UP, s.tensor("B/dp, S/cp, Cq"), q, s.tokens, s.local_shape(q)[2], mla.q_lora_rank or D)
    pairs.enter_backward(w, names.Q_UP, "C")
    axes, stream = s.stream_axes, s.stream_tokens
    x = s.tensor(f"B/dp, S/{axes}, D")
    _latent_norm_backward(w, names.KV_LATENT_NORM, mla.kv_lora_rank)
    w.linear_backward(names.KV_DOWN, x, s.tensor(f"B/dp, S/{axes}, Ckv"), stream, mla.kv_lora_rank + mla.qk_rope_head_dim, D)
    if mla.q_lora_rank is not None:
        _latent_norm_backward(w, names.Q_LATENT_NORM, mla.q_lora_rank)
        w.linear_backward(names.Q_DOWN, x, s.tensor(f"B/dp, S/{axes}, Cq"), stream, mla.q_lora_rank, D)


def _latent_norm(w: Writer, name: str, width: int) -> None:
    s = w.sizes
    size = s.stream_tokens * width * s.act_bytes
    tensor = s.tensor(f"B/dp, S/{s.stream_axes}, {'Cq' if name == names.Q_LATENT_NORM else 'Ckv'}")
    w.memory("forward", name, tensor, tensor, size, size, why="per-token norm of the latent",
             saves=(("latent", size), ("norm_statistics", s.stream_tokens * s.stat_bytes)))  # fmt: skip


def _latent_norm_backward(w: Writer, name: str, width: int) -> None:
    s = w.sizes
    size = s.stream_tokens * width * s.act_bytes
    tensor = s.tensor(f"B/dp, S/{s.stream_axes}, {'Cq' if name == names.Q_LATENT_NORM else 'Ckv'}")
    w.memory("backward_input", name, tensor, tensor, 2 * size, size, why="gradient of the latent's norm")
