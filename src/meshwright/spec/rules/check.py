"""Is this layout legal for this model, workload and cluster; and if so, is it sensible?"""

from __future__ import annotations

from meshwright.errors import InputError, Mistake
from meshwright.spec.cluster import Cluster
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.rules import context, data, experts, pipeline, silly, tensor
from meshwright.spec.rules.candidates import legal_values
from meshwright.spec.rules.rule import Bools, Case, LayoutWarning, Rule
from meshwright.spec.rules.sizes import form_mistakes
from meshwright.spec.workload import Decode, Prefill, Training

RULES: tuple[Rule, ...] = (*tensor.RULES, *context.RULES, *pipeline.RULES, *experts.RULES, *data.RULES)
"""Every hard rule."""

CAUTIONS = silly.CAUTIONS
"""Every soft rule."""

WORKLOAD_KEYS = ("seq", "batch", "gpus", "precision")


def check(
    model: Model,
    workload: Training | Prefill | Decode,
    layout: Layout,
    cluster: Cluster | None = None,
    gpus: int | None = None,
    file: str = "--layout",
) -> list[LayoutWarning]:
    """Refuse a layout that cannot run, or return what is silly about one that can.

    Args:
        model, workload, layout, cluster: the inputs; without a cluster what depends on the network is not judged.
        gpus: ranks that there must be; None to take what the layout makes.
        file: where the layout came from, for messages.

    Raises:
        InputError: all rules that are broken, each with the values that would be legal.
    """
    case = Case(model=model, workload=workload, layout=layout, cluster=cluster, gpus=gpus)
    malformed = form_mistakes(case, file)
    if malformed:
        raise InputError(malformed)
    mistakes = [_mistake(rule, case, file) for rule in RULES if not rule.holds(case)]
    if mistakes:
        raise InputError(mistakes)
    return [caution.warning(case) for caution in CAUTIONS if caution.applies(case)]


def legal(case: Case) -> Bools:
    """Whether every hard rule holds: a bool for one layout, a mask for arrays of degrees that are well-formed."""
    mask: Bools = True
    for rule in RULES:
        mask = mask & rule.holds(case)
    return mask


def _mistake(rule: Rule, case: Case, file: str) -> Mistake:
    where = f"--{rule.key}" if rule.key in WORKLOAD_KEYS and file.startswith("--") else file
    value = rule.value(case) if rule.value else getattr(case.layout, rule.key)
    allowed = rule.legal(case) if rule.legal else legal_values(case, rule.key, RULES)
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return Mistake(where, rule.key, value, allowed, rule.hint(case), rule.problem(case))
