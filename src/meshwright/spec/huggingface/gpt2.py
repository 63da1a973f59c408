"""GPT-2 and BLOOM: LayerNorm with bias, biases everywhere, an MLP of two matrices, usually a tied head.

As built by transformers 5.24: models/gpt2, bloom.
"""

from __future__ import annotations

from typing import Literal

from meshwright.spec.huggingface.config import Config
from meshwright.spec.huggingface.stored_dtype import read_stored_dtype
from meshwright.spec.model import LARGEST_LAYERS, Attention, LayerKind, Model

__all__ = ["read_bloom", "read_gpt2"]

_ACTIVATIONS: dict[str, Literal["gelu", "gelu_tanh", "relu"]] = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "relu": "relu",
}  # fmt: skip
"""gelu_new, gelu_fast and gelu_pytorch_tanh are the same tanh form (Hendrycks and Gimpel, arXiv 1606.08415)."""


def read_gpt2(config: Config) -> Model:
    """GPT-2 (Radford et al., 2019) and models of its shape; learned positions."""
    hidden = config.size("n_embd", 768)
    ffn = config.optional_size("n_inner", None) or 4 * hidden
    activation = _ACTIVATIONS[config.choice("activation_function", _ACTIVATIONS, "gelu_new")]
    config.only("scale_attn_weights", True, "leaves out the scale of attention scores, which is not planned yet", null=False)
    config.only("scale_attn_by_inverse_layer_idx", False, "scales attention by layer, which is not planned yet", null=False)
    config.only("reorder_and_upcast_attn", False, "changes the arithmetic of attention, which is not planned yet", null=False)
    config.only("add_cross_attention", False, "adds an encoder, which is not planned yet", null=False)
    vocab, positions = config.size("vocab_size", 50_257), config.size("n_positions", 1024)
    return _model(config, vocab, hidden, ffn, activation, "learned", positions)


def read_bloom(config: Config) -> Model:
    """BLOOM (arXiv 2211.05100, section 3.2): ALiBi, and a norm after the embedding.

    ALiBi sets no longest sequence; ``seq_length``, which transformers ignores, says what the model was trained with.
    """
    hidden = config.size("hidden_size", 64)
    config.only("n_inner", 4 * hidden, "is not 4 hidden_size, which is what transformers builds")
    config.only("apply_residual_connection_post_layernorm", False, "moves the residual, which is not planned yet", null=False)
    positions = config.integer("seq_length", 2048)
    return _model(config, config.size("vocab_size", 250_880), hidden, 4 * hidden, "gelu_tanh", "alibi", positions)


def _model(
    config: Config, vocab: int, hidden: int, ffn: int, activation: Literal["gelu", "gelu_tanh", "relu"],
    positions: Literal["learned", "alibi"], max_positions: int,
) -> Model:  # fmt: skip
    heads = config.size("n_head", 12 if positions == "learned" else 8)
    if hidden % heads:
        key = "n_embd" if positions == "learned" else "hidden_size"
        if config.sound(key, "n_head"):
            config.note(key, f"a multiple of n_head = {heads}", problem="does not divide into heads")
    layers = config.size("n_layer", 12 if positions == "learned" else 2, high=LARGEST_LAYERS)
    return Model(
        name="",
        vocab_size=vocab,
        hidden_size=hidden,
        ffn_size=ffn,
        attention=Attention(num_heads=heads, num_kv_heads=heads, head_dim=max(1, hidden // heads), qkv_bias=True, out_bias=True),
        layers=(LayerKind(),) * layers,
        activation=activation,
        mlp_bias=True,
        norm="layernorm",
        norm_eps=config.number("layer_norm_epsilon", 1e-5, low=0.0, high=1.0),
        positions=positions,
        max_positions=max_positions,
        embedding_norm=positions == "alibi",
        tied_embeddings=config.flag("tie_word_embeddings", True),
        stored_dtype=read_stored_dtype(config),
    )
