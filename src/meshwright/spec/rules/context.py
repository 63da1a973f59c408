"""Rules of cp and of the sequence length. Letters: K kv heads, N query heads, S sequence."""

from __future__ import annotations

from meshwright.mesh import Ints, choose
from meshwright.spec.rules.rule import Bools, Case, Rule, implies
from meshwright.spec.rules.tensor import tp_divides_heads

TWO_CHUNK_KINDS = ("zigzag", "allgather")
"""Kinds that give each rank an early and a late chunk of the sequence, so that causal work is even. So does the ring of usp."""


def _chunks(case: Case) -> Ints:
    """Equal pieces of the sequence that the cp kind needs."""
    layout = case.layout
    zigzag_ring = (layout.cp_kind == "usp") & (layout.ulysses < layout.cp)
    return layout.cp * choose((layout.cp_kind in TWO_CHUNK_KINDS) | zigzag_ring, 2, 1)


def cp_divides_sequence(case: Case) -> Bools:
    """Each rank holds S/cp tokens; zigzag and allgather cut S into 2 cp chunks and give rank r chunks r and 2cp-1-r.

    allgather is Llama 3's (arXiv 2407.21783, section 3.3.2), which balances the causal mask the same way; the ring of
    usp is a zigzag, whose chunks its ulysses ranks share.
    """
    return implies(case.layout.cp > 1, case.sequence % _chunks(case) == 0)


def ulysses_divides_heads(case: Case) -> Bools:
    """Ulysses trades sequence for heads: after its all_to_all each rank computes N/(tp ulysses) whole heads.

    Jacobs et al. 2023 (arXiv 2309.14509), section 3.
    """
    layout = case.layout
    even = case.num_heads % (layout.tp * layout.ulysses) == 0
    return implies((layout.ulysses > 1) & tp_divides_heads(case), even)


def ulysses_fits_kv_heads(case: Case) -> Bools:
    """Of the K/tp kv heads of a tp rank each ulysses rank gets whole ones, or several ranks get copies of one.

    Where tp exceeds K a tp rank holds one kv head, and every ulysses rank gets a copy of it.
    """
    layout = case.layout
    held = choose(layout.tp > case.num_kv_heads, 1, case.num_kv_heads // layout.tp)
    # A tp that is more than K / 2 and does not fit is tp_fits_kv_heads' to refuse; here it must only not divide by 0.
    held = choose(held > 0, held, 1)
    return (held % layout.ulysses == 0) | (layout.ulysses % held == 0)


def positions_reach(case: Case) -> Bools:
    """A table of learned positions has max_positions rows and nothing after them; rotary positions only degrade (a warning)."""
    longest = case.workload.seq
    return implies(case.model.positions == "learned", longest <= case.model.max_positions)


RULES = (
    Rule(
        code="cp-sequence",
        key="cp",
        holds=cp_divides_sequence,
        problem=lambda case: (
            f"with {case.layout.cp_kind} makes {_chunks(case)} chunks of the sequence, and that does not divide {case.sequence} tokens"
        ),
        hint=lambda case: f"pad the sequence to a multiple of {_chunks(case)}, or change cp",
    ),
    Rule(
        code="cp-ulysses-heads",
        key="cp",
        holds=ulysses_divides_heads,
        problem=lambda case: (
            f"lets ulysses share {case.num_heads} heads / tp {case.layout.tp} of {case.model.name} among {case.layout.ulysses} ranks, "
            "which is not even"
        ),
        hint=lambda case: "ring and zigzag do not cut heads; usp=UxR cuts heads U times only",
    ),
    Rule(
        code="cp-ulysses-kv-heads",
        key="cp",
        holds=ulysses_fits_kv_heads,
        problem=lambda case: (
            f"gives ulysses {case.layout.ulysses} ranks, which neither divide the {case.num_kv_heads} kv heads / tp {case.layout.tp} "
            f"of {case.model.name} nor are a multiple of them"
        ),
        hint=lambda case: "ring and zigzag do not cut heads",
    ),
    Rule(
        code="seq-positions",
        key="seq",
        holds=positions_reach,
        problem=lambda case: f"exceeds the {case.model.max_positions} learned positions of {case.model.name}",
        legal=lambda case: f"1 to {case.model.max_positions}",
        hint=lambda case: "there is no row for later positions; a longer table would be another model",
        value=lambda case: case.workload.seq,
    ),
)
