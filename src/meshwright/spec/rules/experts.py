"""Rules of ep and etp, the fold of experts over dp_shard x cp x tp. Letters: E experts, F ffn."""

from __future__ import annotations

from meshwright.mesh import fold_is_regular
from meshwright.spec.rules.rule import Bools, Case, Rule, implies


def ep_needs_experts(case: Case) -> Bools:
    """Expert parallelism places experts; a dense model has none."""
    return (case.model.moe is not None) | (case.layout.ep == 1)


def etp_needs_experts(case: Case) -> Bools:
    """etp cuts experts; in a dense model it can only be tp."""
    return (case.model.moe is not None) | (case.layout.etp == case.layout.tp)


def ep_divides_experts(case: Case) -> Bools:
    """Each ep rank holds E/ep experts."""
    return case.num_experts % case.layout.ep == 0


def etp_divides_expert_ffn(case: Case) -> Bools:
    """Each etp rank holds F/etp channels of its experts."""
    return case.expert_ffn_size % case.layout.etp == 0


def experts_fill_the_fold(case: Case) -> Bools:
    """Experts are laid over the ranks of one replica and stage again, etp x ep x rest instead of tp x cp x dp_shard.

    Liu et al. 2025 (arXiv 2504.14960, MoE parallel folding); torchtitan folds the same way.
    """
    layout = case.layout
    return implies(case.model.moe is not None, layout.dp_shard * layout.cp * layout.tp % (layout.ep * layout.etp) == 0)


def fold_meets_order(case: Case) -> Bools:
    """With another axis between the ranks of the fold, ep and etp must meet the gap at a whole number (mesh/legs.py)."""
    if case.model.moe is None:
        return True
    return implies(experts_fill_the_fold(case), fold_is_regular(case.layout))


def etp_needs_sp(case: Case) -> Bools:
    """Without sp the ranks of a tp group hold the same tokens: a smaller etp would process each token more than once,
    a larger one would add up results of different tokens. With sp every rank's tokens are its own.

    Megatron-Core asks for sequence parallelism with tp and ep for the same reason (model_parallel_config.py).
    """
    return implies(case.model.moe is not None, (case.layout.etp == case.layout.tp) | (case.layout.sp != 0))


def etp_groups_are_tp_groups(case: Case) -> Bools:
    """Without sp an etp group sums the outputs of one set of tokens, so it must be a tp group, which holds them in common.

    The fold numbers its ranks in the layout's order: tp begins after cp and dp_shard if they are inside it, etp after ep and
    what ep and etp leave of the fold. Both must begin at the same number.
    """
    if case.model.moe is None:
        return True
    layout = case.layout
    inner = layout.order.split("-")
    inner = inner[: inner.index("tp")]
    tp_starts = (layout.cp if "cp" in inner else 1) * (layout.dp_shard if "dp" in inner else 1)
    rest = layout.dp_shard * layout.cp * layout.tp // (layout.ep * layout.etp)
    etp_starts = (layout.ep if "ep" in inner else 1) * (rest if "dp" in inner else 1)
    return implies((layout.sp == 0) & (layout.tp > 1) & experts_fill_the_fold(case), tp_starts == etp_starts)


def _fold(case: Case) -> str:
    layout = case.layout
    return f"dp_shard {layout.dp_shard} x cp {layout.cp} x tp {layout.tp} = {layout.fold}"


RULES = (
    Rule(
        code="ep-dense",
        key="ep",
        holds=ep_needs_experts,
        problem=lambda case: f"but {case.model.name} has no experts",
        legal=lambda case: "1",
        hint=lambda case: "leave ep out",
    ),
    Rule(
        code="etp-dense",
        key="etp",
        holds=etp_needs_experts,
        problem=lambda case: f"but {case.model.name} has no experts",
        legal=lambda case: f"tp, which is {case.layout.tp}",
        hint=lambda case: "leave etp out",
    ),
    Rule(
        code="ep-experts",
        key="ep",
        holds=ep_divides_experts,
        problem=lambda case: f"does not divide num_experts = {case.num_experts} of {case.model.name}",
        hint=lambda case: "each ep rank holds the same number of experts",
    ),
    Rule(
        code="etp-ffn",
        key="etp",
        holds=etp_divides_expert_ffn,
        problem=lambda case: f"does not divide expert_ffn_size = {case.expert_ffn_size} of {case.model.name}",
        hint=lambda case: "etp is tp unless it is given; etp=1 (with sp) keeps experts whole",
    ),
    Rule(
        code="ep-fold",
        key="ep",
        holds=experts_fill_the_fold,
        problem=lambda case: f"x etp {case.layout.etp} does not divide the fold of experts, {_fold(case)}",
        hint=lambda case: "dp_replicate and pp are outside the fold; etp is tp unless it is given",
    ),
    Rule(
        code="ep-order",
        key="order",
        holds=fold_meets_order,
        problem=lambda case: (
            f"puts another axis between tp, cp and dp where ep {case.layout.ep} and etp {case.layout.etp} leave unequal groups"
        ),
        legal=lambda case: "tp, cp and dp next to each other, as in tp-cp-ep-dp-pp",
    ),
    Rule(
        code="etp-sp",
        key="etp",
        holds=etp_needs_sp,
        problem=lambda case: f"differs from tp = {case.layout.tp} without sp",
        legal=lambda case: f"{case.layout.tp}, or any divisor of the fold with sp",
        hint=lambda case: "add sp" if case.layout.tp > 1 else "raise tp and add sp, or leave etp out",
    ),
    Rule(
        code="etp-order",
        key="order",
        holds=etp_groups_are_tp_groups,
        problem=lambda case: "puts ranks with other tokens into a group that shares an expert's ffn",
        legal=lambda case: "tp first, as in tp-cp-ep-dp-pp; or any with sp",
        hint=lambda case: "put tp first, or add sp",
    ),
)
