"""Rules of tp, sp and the padded vocabulary. Letters: F ffn, K kv heads, N query heads, S sequence, V vocab."""

from __future__ import annotations

from meshwright.mesh import Ints
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.rules.rule import Bools, Case, Rule, implies


def padded_vocab(model: Model, layout: Layout) -> Ints:
    """Rows of embedding and head: V rounded up to a multiple of vocab_pad for each of the tp ranks that share it.

    As Megatron-LM pads (--make-vocab-size-divisible-by, 128 there, times the tensor-parallel size); the rows added are
    masked out of the loss. With vocab=off every rank holds all rows, a multiple of vocab_pad.
    """
    multiple = layout.vocab_pad * (layout.tp if layout.vocab else 1)
    return -(-model.vocab_size // multiple) * multiple


def tp_divides_heads(case: Case) -> Bools:
    """Attention is cut by whole heads: the softmax of one head needs all of its channels."""
    return case.num_heads % case.layout.tp == 0


def tp_fits_kv_heads(case: Case) -> Bools:
    """A tp rank holds whole kv heads (tp divides K), or shares one with neighbours (tp a multiple of K).

    Copies are trained as one: their gradients are summed over the ranks that hold the same head.
    """
    K, tp = case.num_kv_heads, case.layout.tp
    return (K % tp == 0) | (tp % K == 0)


def tp_divides_ffn(case: Case) -> Bools:
    """The column-parallel up projection gives each rank F/tp channels."""
    return implies(case.has_dense_layers, case.model.ffn_size % case.layout.tp == 0)


def tp_divides_shared_expert(case: Case) -> Bools:
    """The shared expert sees every token and is cut over tp like a dense MLP."""
    return case.shared_ffn_size % case.layout.tp == 0


def sp_needs_tp(case: Case) -> Bools:
    """Sequence parallelism cuts what tensor parallelism leaves whole on each of its ranks; without them there is nothing to cut.

    Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.2.
    """
    return implies(case.layout.sp, case.layout.tp > 1)


def sp_divides_sequence(case: Case) -> Bools:
    """Between the tp regions each rank holds S/(cp tp) tokens; reduce_scatter needs equal parts."""
    return implies(case.layout.sp, case.sequence % (case.layout.tp * case.layout.cp) == 0)


RULES = (
    Rule(
        code="tp-heads",
        key="tp",
        holds=tp_divides_heads,
        problem=lambda case: f"does not divide num_heads = {case.num_heads} of {case.model.name}",
        hint=lambda case: "cut the sequence (cp) or the layers (pp) instead if more ranks are needed",
    ),
    Rule(
        code="tp-kv-heads",
        key="tp",
        holds=tp_fits_kv_heads,
        problem=lambda case: f"neither divides num_kv_heads = {case.num_kv_heads} of {case.model.name} nor is a multiple of it",
        hint=lambda case: "each rank needs whole kv heads, or a number of ranks one head between them",
    ),
    Rule(
        code="tp-ffn",
        key="tp",
        holds=tp_divides_ffn,
        problem=lambda case: f"does not divide ffn_size = {case.model.ffn_size} of {case.model.name}",
        hint=lambda case: "each rank takes the same number of the MLP's channels; cp or pp can take more ranks",
    ),
    Rule(
        code="tp-shared-ffn",
        key="tp",
        holds=tp_divides_shared_expert,
        problem=lambda case: f"does not divide shared_ffn_size = {case.shared_ffn_size} of {case.model.name}",
        hint=lambda case: "the shared expert is cut over tp like a dense MLP",
    ),
    Rule(
        code="sp-needs-tp",
        key="sp",
        holds=sp_needs_tp,
        problem=lambda case: "needs tp of 2 or more",
        legal=lambda case: "off while tp = 1",
        value=lambda case: "on",
        hint=lambda case: "leave sp out, or raise tp",
    ),
    Rule(
        code="sp-sequence",
        key="sp",
        holds=sp_divides_sequence,
        problem=lambda case: f"but tp x cp = {case.layout.tp * case.layout.cp} does not divide the sequence of {case.sequence} tokens",
        legal=lambda case: f"with a sequence that is a multiple of {case.layout.tp * case.layout.cp}; otherwise off",
        hint=lambda case: "pad the sequence, or lower tp or cp",
        value=lambda case: "on",
    ),
)
