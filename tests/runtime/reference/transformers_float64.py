"""transformers' models in float64 from end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from meshwright.runtime.reference.import_huggingface import to_huggingface
from runtime.reference.families import Family


class WithoutFloat32(TorchFunctionMode):
    """Every request for float32 (``.float()``, ``.to(float32)``, ``dtype=float32``) asks for float64 instead.

    transformers casts norms, softmax, routers and rotary angles to float32 whatever the model's dtype. That is right for bfloat16,
    and hides every difference below 1e-7 in a float64 model.
    """

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.float:
            return args[0].double()
        args = tuple(_widened(value) for value in args)
        return func(*args, **{key: _widened(value) for key, value in (kwargs or {}).items()})


def _widened(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def casts(off: bool) -> Iterator[None]:
    """As shipped, or without float32, the default dtype (of a quotient of integers, say) included."""
    if not off:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with WithoutFloat32():
            yield
    finally:
        torch.set_default_dtype(before)


def transformers_model(family: Family, weights: dict[str, Tensor], without_float32: bool) -> transformers.PreTrainedModel:
    """The family's model with our weights, float64, eager attention and experts. Build and run it inside ``casts``."""
    model = transformers.AutoModelForCausalLM.from_config(
        family.config(), attn_implementation="eager", experts_implementation="eager", dtype=torch.float64
    )
    state = to_huggingface(family.model, weights, family.naming)
    with torch.no_grad():
        missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if family.model.tied_embeddings else set())
    model.tie_weights()
    if without_float32:
        _full_gelu(model)
    return model


def _full_gelu(model: nn.Module) -> None:
    """BLOOM writes sqrt(2 / pi) with eight digits, 1e-9 off: torch's own tanh GELU in its place."""
    for module in list(model.modules()):
        if hasattr(module, "gelu_impl"):
            module.gelu_impl = nn.GELU(approximate="tanh")


def balance_by_layer(family: Family, router_logits: Sequence[Tensor]) -> Tensor:
    """transformers' balance loss of each layer by itself, summed and weighted; its models take all layers together."""
    moe = family.model.moe
    assert moe is not None
    losses = [load_balancing_loss_func((logits,), moe.num_experts, moe.top_k) for logits in router_logits]
    return moe.aux_loss_coefficient * torch.stack(losses).sum()
