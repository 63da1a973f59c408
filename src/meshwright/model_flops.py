"""Model flops per token, and MFU, under the conventions that published figures use. Every MFU says which.

N is the number of matrix parameters that a token meets (head included, embedding table and norms not, of the experts the top
k), L layers, d = heads x head dim, s sequence.

    causal     6 N + 6 L d s     (Megatron-Bridge 2025; the default)
    full       6 N + 12 L d s    (PaLM, arXiv 2204.02311, appendix B; Korthikanti et al., arXiv 2205.05198)
    hardware   8 N + 16 L d s    one recomputed forward included (Narayanan et al., arXiv 2104.04473, section 5.1)
    6n         6 N               no attention
"""

from __future__ import annotations

from functools import lru_cache

from meshwright.ledger.blocks.attention_core import score_pairs
from meshwright.spec.model import Model
from meshwright.spec.parameters import layer_parameters

CONVENTIONS = ("causal", "full", "hardware", "6n")


@lru_cache(maxsize=256)
def matmul_parameters(model: Model) -> float:
    """N: matrix parameters that one token meets."""
    head = model.vocab_size * model.hidden_size
    total = float(head)
    for kind in model.layers:
        for parameter in layer_parameters(model, kind):
            if len(parameter.shape) == 2:
                share = 1.0
                if model.moe is not None and parameter.cut.startswith("expert"):
                    share = model.moe.top_k / model.moe.num_experts
                total += parameter.size * share
    return total


@lru_cache(maxsize=256)
def attention_flops_per_token(model: Model, seq: int, causal: bool = True) -> float:
    """Forward and backward (3 x forward) of the scores and the weighted sum: 6 L d s with a causal mask, 12 L d s without;
    windows count what they see. s (s + 1) / 2 pairs are taken as s^2 / 2, as the conventions do."""
    a = model.attention
    width = (a.mla.qk_head_dim if a.mla else a.head_dim) + a.v_head_dim
    flops = 0.0
    for kind in model.layers:
        if kind.window is None or kind.window >= seq or not causal:
            pairs = seq * seq / 2 if causal else float(seq * seq)
        else:
            pairs = float(score_pairs(seq, kind.window))
        flops += 3 * 2 * pairs * a.num_heads * width
    return flops / seq


def flops_per_token(model: Model, seq: int, convention: str = "causal") -> float:
    """Flops that one trained token costs under a convention.

    Raises:
        KeyError: no such convention.
    """
    matrices = matmul_parameters(model)
    return {
        "causal": 6 * matrices + attention_flops_per_token(model, seq),
        "full": 6 * matrices + attention_flops_per_token(model, seq, causal=False),
        "hardware": 8 * matrices + 4 / 3 * attention_flops_per_token(model, seq, causal=False),
        "6n": 6 * matrices,
    }[convention]
