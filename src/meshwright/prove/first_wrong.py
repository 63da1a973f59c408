"""Where numbers go wrong first, which says where to look; the worst error seldom does.

A loss that differs means the forward (or the weights that it began with). Where it agrees and gradients differ, the backward is at
fault, and first at the tensor that is nearest to the loss. Where those agree and their norm differs, the norm counts something
twice or not at all.
"""

from __future__ import annotations

import re

from meshwright.prove.compare import Numbers, gradient_errors, relative_error, weight_errors

LATEST = 10**9


def first_wrong(parallel: Numbers, reference: Numbers, bound: float) -> str | None:
    """``loss of step 0: 1.2e-02, the forward differs``; None where nothing exceeds the bound."""
    for step in range(min(len(parallel.losses), len(reference.losses))):
        loss = relative_error(float(parallel.losses[step]), float(reference.losses[step]))
        if loss > bound:
            blame = "the forward differs" if not step else f"the forward differs, or the weights that step {step - 1} left"
            return f"loss of step {step}: {loss:.2e}, {blame}"
        wrong = {name: error for name, error in gradient_errors(parallel, reference, step).items() if error > bound}
        if wrong:
            name = max(wrong, key=_nearness)
            others = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            return f"gradient of {name} in step {step}: {wrong[name]:.2e}{others}; the loss agrees, so the backward differs"
        norm = relative_error(float(parallel.gradient_norms[step]), float(reference.gradient_norms[step]))
        if norm > bound:
            return f"gradient norm of step {step}: {norm:.2e}, though every gradient agrees"
    wrong = {name: error for name, error in weight_errors(parallel, reference).items() if error > bound}
    if wrong:
        name = max(wrong, key=wrong.__getitem__)
        return f"weight {name}: {wrong[name]:.2e}, though every gradient agrees"
    return None


def _nearness(name: str) -> tuple[int, int]:
    """How late in the forward a parameter is used: by layer, then by its place in it. The head and final norm come after the layers."""
    layer = re.match(r"layers\.(\d+)\.", name)
    place = next((n for n, part in enumerate(_IN_A_LAYER) if part in name), -1)
    if layer is None:
        return (-1 if name.startswith(("embedding", "positions")) else LATEST), int(name.startswith("head"))
    return int(layer[1]), place


_IN_A_LAYER: tuple[str, ...] = (
    "attention.norm", "attention.qkv", "attention.q_", "attention.k", "attention.sinks", "attention.out", ".norm", "router", "gate_up",
    "experts.weight", "experts.bias", "down",
)  # fmt: skip
"""Parts of parameters' names in the order of a layer's forward."""
