"""A Transformer, by the sizes that decide its shapes.

Letters (DESIGN section 3): D model, F ffn, L layers, N query heads, K kv heads, H head dim, V vocab, E experts.
Hugging Face's key names are mapped to these when a config is read (spec/huggingface/); spec/model_rules.py holds what
must fit together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

LARGEST_LAYERS = 10**5
"""No model has more layers; other sizes end at tables.LARGEST_SIZE."""


@dataclass(frozen=True, kw_only=True)
class Mla:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    q_lora_rank is None where queries are projected directly.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The attention of every layer (its window may differ by layer: see LayerKind).

    Attributes:
        num_heads: N. num_kv_heads: K; K = N is multi-head, K = 1 multi-query.
        head_dim: H of q and k (for MLA: nope + rope part).
        qkv_bias, out_bias: whether the projections carry a bias.
        qk_norm: an RMSNorm of width H on each head's q and k (Qwen3).
        sinks: one learned logit per head in the softmax's denominator (gpt-oss).
        mla: latent attention instead of grouped heads.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    mla: Mla | None = None

    @property
    def v_head_dim(self) -> int:
        return self.mla.v_head_dim if self.mla else self.head_dim


@dataclass(frozen=True, kw_only=True)
class Moe:
    """The mixture of experts of a MoE layer.

    Attributes:
        num_experts: E. top_k: experts per token. expert_ffn_size: F of one expert.
        shared_ffn_size: F of the shared expert(s) taken together, 0 for none.
        score: what turns router logits into weights: "softmax" over all experts (Mixtral, Qwen3),
            "softmax_topk" over the chosen ones (gpt-oss), "sigmoid" (DeepSeek-V3).
        router_bias: the router is a linear layer with bias (gpt-oss).
        selection_bias: a bias per expert that is added for the choice only, moved by load and not by gradient
            (DeepSeek-V3's auxiliary-loss-free balancing).
        expert_bias: the experts' projections carry biases (gpt-oss).
        num_groups, top_groups: group-limited routing; 1, 1 for none.
        norm_topk: the chosen weights are scaled to sum to one.
        routed_scale: factor on the routed output (DeepSeek-V3's routed_scaling_factor).
        aux_loss_coefficient: weight of the load-balancing loss, 0 for none.
    """

    num_experts: int
    top_k: int
    expert_ffn_size: int
    shared_ffn_size: int = 0
    score: Literal["softmax", "softmax_topk", "sigmoid"] = "softmax"
    router_bias: bool = False
    selection_bias: bool = False
    expert_bias: bool = False
    num_groups: int = 1
    top_groups: int = 1
    norm_topk: bool = True
    routed_scale: float = 1.0
    aux_loss_coefficient: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """What may differ between layers: the attention window and dense or MoE.

    window: tokens that a query sees, its own among them; None for all earlier ones.
    """

    window: int | None = None
    moe: bool = False

    @property
    def label(self) -> str:
        block = "moe" if self.moe else "dense"
        return block if self.window is None else f"{block} window={self.window}"


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary positions. ``scaling`` holds Hugging Face's rope_scaling keys as sorted pairs, () for none.

    rotary_dim: the leading dims of a head that rotate; None for all. interleaved: pairs (2i, 2i+1) instead of
    halves (DeepSeek).
    """

    theta: float = 10_000.0
    scaling: tuple[tuple[str, float | str | bool], ...] = ()
    rotary_dim: int | None = None
    interleaved: bool = False


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only Transformer.

    Attributes:
        hidden_size: D. ffn_size: F of the dense layers. vocab_size: V, unpadded.
        layers: the kind of each decoder layer, in order; L = len(layers).
        activation: "swiglu" (two column-parallel matrices), "swiglu_clamped" (gpt-oss, limit in activation_limit),
            or one-matrix "gelu", "gelu_tanh", "relu".
        norm: "rmsnorm", or "layernorm" with a bias.
        positions: "rope", "learned" (a table of max_positions rows), "alibi" or "none".
        embedding_norm: a norm right after the embedding (BLOOM).
        mtp_layers: multi-token-prediction layers after the last one (DeepSeek-V3, arXiv 2412.19437, section 2.2).
        stored_dtype: dtype of the checkpoint, with quantization_config taken into account; serving only.
        assumed: what the input left out, as "hidden_size = 4096"; estimates pass it on.
    """

    name: str
    vocab_size: int
    hidden_size: int
    ffn_size: int
    attention: Attention
    layers: tuple[LayerKind, ...]
    moe: Moe | None = None
    activation: Literal["swiglu", "swiglu_clamped", "gelu", "gelu_tanh", "relu"] = "swiglu"
    activation_limit: float | None = None
    mlp_bias: bool = False
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_eps: float = 1e-5
    positions: Literal["rope", "learned", "alibi", "none"] = "rope"
    rope: Rope = field(default_factory=Rope)
    max_positions: int = 131_072
    embedding_norm: bool = False
    tied_embeddings: bool = False
    mtp_layers: int = 0
    stored_dtype: str = "bf16"
    source: str = ""
    assumed: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.vocab_size, self.hidden_size, self.ffn_size, self.attention, self.layers, self.moe))

    def __hash__(self) -> int:
        """Worked out once: models are keys of caches, and have a hundred layers."""
        return self._hash

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate beside its up projection."""
        return self.activation.startswith("swiglu")

    @cached_property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The distinct layer kinds in the order of their first layer."""
        return tuple(dict.fromkeys(self.layers))

    @property
    def norm_params(self) -> int:
        """Parameters per normalised channel: weight, and bias for LayerNorm."""
        return 2 if self.norm == "layernorm" else 1
