"""Command lines of vLLM and SGLang. Options as of vLLM 0.11 (vllm serve --help) and SGLang 0.5 (sglang.launch_server --help)."""

from __future__ import annotations

from pathlib import Path

from meshwright.lint.models import named_model
from meshwright.lint.setup import Setup, gpus_of
from meshwright.lint.shell import Options, Script

__all__ = ["recognises", "setup_of"]

WORDS = {"tp": "--tensor-parallel-size", "pp": "--pipeline-parallel-size", "ep": "--enable-expert-parallel", "gpus": "GPUs"}

REMEDIES = {
    "tp-across-nodes": "`--pipeline-parallel-size` across nodes and `--tensor-parallel-size` inside them",
    "kv-copies": "a `--tensor-parallel-size` of at most the model's kv heads, and `--data-parallel-size` for the other GPUs",
}


def recognises(words: tuple[str, ...]) -> bool:
    text = " ".join(words)
    return ("vllm" in text and ("serve" in words or "api_server" in text)) or "sglang.launch_server" in text or "sglang_router" in text


def setup_of(script: Script, words: tuple[str, ...], options: Options, beside: Path) -> Setup:
    """The setup of one server: without a launcher's word on it, of as many GPUs as it asks for."""
    tp = options.number("tensor-parallel-size", "tp", "tp-size") or 1
    pp = options.number("pipeline-parallel-size", "pp", "pp-size") or 1
    dp = options.number("data-parallel-size", "dp", "dp-size") or 1
    name = options.text("model", "model-path") or _served(words)
    model = named_model(name, beside) if name else None
    gpus, per_node = gpus_of(script, options)
    experts = options.has("enable-expert-parallel") and model is not None and model.moe is not None
    degrees: dict[str, object] = {"tp": tp, "pp": pp, "dp_shard": dp}
    if experts:
        degrees |= {"ep": tp * dp, "etp": 1, "sp": tp > 1}
    return Setup(
        framework="SGLang" if "sglang" in " ".join(words) else "vLLM", degrees=degrees, model=model, seq=options.number("max-model-len"),
        gpus=gpus if gpus and gpus >= tp * pp * dp else None, gpus_per_node=per_node, serving=True, words=WORDS, remedies=REMEDIES,
        assumed=() if model or not name else (f"nothing of the model {name}: it is not in the catalog",),
    )  # fmt: skip


def _served(words: tuple[str, ...]) -> str | None:
    if "serve" not in words:
        return None
    after = words[words.index("serve") + 1 :]
    return after[0] if after and not after[0].startswith("-") else None
