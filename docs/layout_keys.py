"""The table of a layout's keys: what each means, its default, and the rules that speak about it."""

from __future__ import annotations

import cog  # the module that cog gives to the code inside a page

from meshwright.spec.layout import CP_KINDS, KEYS, SCHEDULES, Layout
from meshwright.spec.rules import RULES
from meshwright.spec.stack import STACKS
from meshwright.spec.workload import PRECISIONS
from meshwright.units import DTYPE_BYTES

MEANING = {
    "tp": "tensor parallel: this many ranks share every matrix. q, k, v and the MLP's first matrices are cut by columns, their "
    "partners by rows",
    "sp": "sequence parallel, with tp: between those pairs each rank has S/tp tokens, so norms and residuals are not held tp times",
    "vocab": "embedding, head and loss are cut over tp by the vocabulary; `vocab=off` leaves them whole on each rank",
    "vocab_pad": "the vocabulary is padded to a multiple of this times tp, as Megatron does with 128; padded columns are masked",
    "cp": "context parallel: this many ranks share each sequence. `cp=N:KIND` says how attention still sees all of it: "
    f"{' '.join(CP_KINDS)}",
    "pp": f"pipeline parallel: this many ranks hold different layers. `pp=P:SCHEDULE` says in which order they work: {' '.join(SCHEDULES)}",
    "stages": "decoder layers of each of the p v chunks, where they are not equal: `stages=9,10*2,9`. Embedding is on the first, head "
    "on the last",
    "ep": "expert parallel: this many ranks hold different experts. They are folded over the ranks of dp_shard, cp and tp, and add none",
    "etp": "tensor parallel inside an expert; tp unless said otherwise",
    "dp": "data parallel: `dp=RxS` is R replicas of S ranks that shard the state; `dp=N` is `1xN`. Left out, it is what the GPU count "
    "leaves",
    "zero": "what is sharded over dp_shard x cp: nothing (0), optimizer (1), and gradients (2), and parameters (3, FSDP). `3:local` "
    "reduces gradients after the last micro-batch only; `3:keep` also gathers parameters only once a step",
    "mb": "sequences of a micro-batch. m = batch / (R S mb) of them make a step",
    "recompute": "what the backward computes again instead of keeping it: `none`, `selective` (the attention core), `full`, or "
    "`full=n`, the first n layers of each chunk",
    "order": "axes from the innermost to the outermost; neighbours on the innermost are neighbouring GPUs",
}
"""What each key means, in one or two sentences."""


def table() -> None:
    """One line per key."""
    assert tuple(MEANING) == KEYS
    cog.outl("\n| key | default | meaning | rules |\n|---|---|---|---|")
    default = Layout()
    words = {
        "sp": "off", "vocab": "on with tp", "cp": "1, zigzag", "pp": f"1, {default.schedule}", "stages": "equal", "etp": "tp",
        "dp": "the rest", "order": f"`{default.order}`",
    }  # fmt: skip
    for key, meaning in MEANING.items():
        rules = " ".join(f"`{rule.code}`" for rule in RULES if rule.key == key)
        cog.outl(f"| `{key}` | {words.get(key) or getattr(default, key)} | {meaning} | {rules} |")
    cog.outl()


def precisions() -> None:
    """The recipes of ``--precision``."""
    cog.outl("\n| recipe | products | weight | gradient | optimizer | gathered by zero=3 |\n|---|---|---|---|---|---|")
    for recipe in PRECISIONS.values():
        widths = [f"{DTYPE_BYTES[dtype]:g} ({dtype})" for dtype in (recipe.weight, recipe.gradient)]
        cells = [f"`{recipe.name}`", recipe.compute, *widths, str(recipe.state_bytes), recipe.gathered]
        cog.outl(f"| {' | '.join(cells)} |")
    cog.outl()


def stacks() -> None:
    """The stacks of ``--stack``, and what each runs beside compute."""
    overlaps = {
        "data parallelism": "hides_data_parallel", "ZeRO's gather": "hides_parameter_gather", "ring exchanges": "hides_context_parallel",
        "pipeline messages": "hides_pipeline", "experts' exchanges": "hides_expert_parallel",
    }  # fmt: skip
    cog.outl("\n| stack | what it is | runs beside compute |\n|---|---|---|")
    for stack in STACKS.values():
        hidden = ", ".join(words for words, key in overlaps.items() if getattr(stack, key)) or "nothing"
        cog.outl(f"| `{stack.name}` | {stack.source} | {hidden} |")
    cog.outl()
