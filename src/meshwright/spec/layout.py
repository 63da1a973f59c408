"""A layout: how a model is split over the ranks, and its one-line text (DESIGN section 4).

``Layout`` holds plain integers. The search evaluates many layouts at once with objects that have the same attribute
names and numpy arrays for the degrees (search/space.py); formulas must not care which they get.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import groupby

from meshwright.errors import InputError, Mistake, Mistakes

CP_KINDS = ("ring", "zigzag", "striped", "ulysses", "allgather", "usp")
SCHEDULES = (
    "naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v", "dualpipe", "dualpipe-v",
)  # fmt: skip
RECOMPUTES = ("none", "selective", "full")
ZERO_VARIANTS = ("", "local", "keep")
ORDER_AXES = ("tp", "cp", "ep", "dp", "pp")
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
TWO_CHUNK_SCHEDULES = ("zb-v", "dualpipe-v")
"""Schedules that always place two chunks of layers on each rank, in a V."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way to split a model; DESIGN section 4 says what each key means.

    Attributes that are not keys of the text by the same name:
        etp: defaults to tp (Megatron's rule).
        vocab: whether embedding, head and loss are cut over tp.
        ulysses: ranks of a cp group that swap sequence for heads: cp for ``ulysses``, U for ``usp=UxR``, else 1.
        virtual_stages: v of ``interleaved*v``; 2 for the V-shaped schedules; else 1.
        stages: decoder layers of each of the pp * v chunks, in model order, or None for an even split.
        zero_variant: "local" or "keep" of zero=3.
        recompute_layers: n of ``full=n``, None for all layers.
    """

    tp: int = 1
    sp: bool = False
    vocab: bool = True
    vocab_pad: int = 1
    cp: int = 1
    cp_kind: str = "zigzag"
    ulysses: int = 1
    pp: int = 1
    schedule: str = "1f1b"
    virtual_stages: int = 1
    stages: tuple[int, ...] | None = None
    ep: int = 1
    etp: int = 0
    dp_replicate: int = 1
    dp_shard: int = 1
    zero: int = 0
    zero_variant: str = ""
    mb: int = 1
    recompute: str = "none"
    recompute_layers: int | None = None
    order: str = DEFAULT_ORDER

    def __post_init__(self) -> None:
        if not self.etp:
            object.__setattr__(self, "etp", self.tp)

    @property
    def dp(self) -> int:
        return self.dp_replicate * self.dp_shard

    @property
    def world_size(self) -> int:
        return self.dp_replicate * self.dp_shard * self.cp * self.tp * self.pp

    @property
    def fold(self) -> int:
        """Ranks over which experts are folded: dp_shard x cp x tp."""
        return self.dp_shard * self.cp * self.tp

    @property
    def edp(self) -> int:
        """Ranks of the fold that hold the same experts, and share their state."""
        return self.fold // (self.ep * self.etp)

    def micro_batches(self, batch: int) -> int:
        """m: micro-batches of one rank in one step; rules/ has checked that it is whole."""
        return batch // (self.dp * self.mb)

    def __str__(self) -> str:
        return print_layout(self)


def print_layout(layout: Layout) -> str:
    """The shortest text that parses back to ``layout``; ``dp`` is always said."""
    default = Layout()
    words = []
    if layout.tp > 1:
        words.append(f"tp={layout.tp}")
    if layout.sp:
        words.append("sp")
    if not layout.vocab:
        words.append("vocab=off")
    if layout.vocab_pad != default.vocab_pad:
        words.append(f"vocab_pad={layout.vocab_pad}")
    if layout.cp > 1 or layout.cp_kind != default.cp_kind:
        kind = layout.cp_kind
        if kind == "usp":
            words.append(f"cp={layout.cp}:usp={layout.ulysses}x{layout.cp // layout.ulysses}")
        else:
            words.append(f"cp={layout.cp}" if kind == default.cp_kind else f"cp={layout.cp}:{kind}")
    if layout.pp > 1 or layout.schedule != default.schedule:
        text = layout.schedule
        if text == "interleaved":
            text += f"*{layout.virtual_stages}"
        words.append(f"pp={layout.pp}" if text == default.schedule else f"pp={layout.pp}:{text}")
    if layout.stages is not None:
        words.append("stages=" + _print_stages(layout.stages))
    if layout.ep > 1:
        words.append(f"ep={layout.ep}")
    if layout.etp != layout.tp:
        words.append(f"etp={layout.etp}")
    words.append(f"dp={layout.dp_replicate}x{layout.dp_shard}")
    if layout.zero:
        words.append(f"zero={layout.zero}" + (f":{layout.zero_variant}" if layout.zero_variant else ""))
    words.append(f"mb={layout.mb}")
    if layout.recompute != default.recompute:
        limit = layout.recompute_layers
        words.append(f"recompute={layout.recompute}" + ("" if limit is None else f"={limit}"))
    if layout.order != default.order:
        words.append(f"order={layout.order}")
    return " ".join(words)


def parse_layout(text: str, gpus: int | None = None, file: str = "--layout") -> Layout:
    """Read one line such as ``tp=8 sp cp=2:zigzag pp=4:interleaved*2 dp=4x2 zero=1 mb=1``.

    Args:
        text: the keys, separated by blanks; a key may appear once.
        gpus: the job's GPUs; an absent ``dp`` is what they leave, and a present one must multiply out to them.
        file: named in mistakes.

    Raises:
        InputError: unknown or repeated keys, values out of range, degrees that do not multiply out to ``gpus``. What
            depends on model and workload is checked by the rules (spec/rules/).
    """
    with Mistakes.of(file) as mistakes:
        values = _read_words(text, mistakes)
    layout = Layout(**values)  # type: ignore[arg-type]
    return fill_dp(layout, gpus, given="dp_shard" in values, file=file)


def fill_dp(layout: Layout, gpus: int | None, given: bool, file: str = "--layout") -> Layout:
    """Give ``dp`` what the GPU count leaves, or check that the degrees multiply out to it."""
    if gpus is None:
        return layout
    rest = layout.tp * layout.cp * layout.pp
    product = f"tp {layout.tp} x cp {layout.cp} x pp {layout.pp}"
    if not given:
        if gpus % rest:
            raise InputError([Mistake(
                file, "gpus", gpus, f"a multiple of {rest} ({product})",
                "change a degree or the GPU count", f"is not a multiple of {product}",
            )])  # fmt: skip
        return replace(layout, dp_shard=gpus // rest)
    if layout.world_size != gpus:
        product += f" x dp {layout.dp_replicate}x{layout.dp_shard}"
        raise InputError([Mistake(
            file, "gpus", gpus, f"{layout.world_size} ({product})",
            "leave dp out to let the GPU count decide it", f"but the layout has {layout.world_size} ranks",
        )])  # fmt: skip
    return layout


MAX_STAGES = 100_000
"""No model has more layers (spec/model.py), so no pipeline more chunks."""

KEYS = (
    "tp", "sp", "vocab", "vocab_pad", "cp", "pp", "stages", "ep", "etp", "dp", "zero", "mb", "recompute", "order",
)  # fmt: skip
"""The words of a layout's text."""

HINTS = {
    "tp": "tp=8 cuts each layer over 8 ranks",
    "sp": "the word alone turns it on, with tp",
    "vocab": "on wherever tp is; vocab=off turns it off",
    "vocab_pad": "vocab_pad=128 is Megatron's",
    "cp": "cp=2 or cp=2:ulysses cuts the sequence over 2 ranks",
    "pp": "pp=4 or pp=4:interleaved*2 cuts the layers over 4 stages",
    "stages": "one number of decoder layers for each stage, in model order",
    "ep": "ep=8 places the experts over 8 ranks",
    "etp": "leave it out: it is tp",
    "dp": "dp=8, or dp=2x4 for 2 replicas of 4 shards",
    "zero": "zero=3 is FSDP",
    "mb": "mb=1: sequences per micro-batch",
    "recompute": "recompute=full=4: the first 4 layers of each chunk",
    "order": "order=tp-cp-ep-dp-pp is the default",
}
"""What a key may look like, for mistakes in its value."""


def _read_words(text: str, mistakes: Mistakes) -> dict[str, object]:
    words = text.split()
    if not words:
        mistakes.add("", None, "e.g. tp=8 sp dp=1x8 zero=3 mb=1", "say at least one key, or leave --layout out",
                     "is an empty layout")  # fmt: skip
    values: dict[str, object] = {}
    seen: set[str] = set()
    for word in words:
        key, _, value = word.partition("=")
        if key in seen:
            mistakes.add(key, value, "each key once", "take one of the two out", "is given twice")
        elif key not in KEYS:
            mistakes.add(key, value or None, " ".join(KEYS), _did_you_mean(key), "is not a key of a layout")
        else:
            read = Mistakes(mistakes.file)
            _READERS[key](key, value, values, read)
            mistakes.found += [replace(mistake, value=value or None, hint=mistake.hint or HINTS[key]) for mistake in read.found]
        seen.add(key)
    return values


def _did_you_mean(key: str) -> str:
    """Other frameworks' words for our keys, and near misses."""
    from difflib import get_close_matches

    known = {
        "tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep", "data": "dp", "fsdp": "zero=3",
        "hsdp": "dp=RxS zero=3", "ddp": "zero=0", "ac": "recompute", "micro_batch": "mb", "mbs": "mb", "vpp": "pp=P:interleaved*v",
        "v": "pp=P:interleaved*v", "schedule": "pp=P:SCHEDULE", "ulysses": "cp=N:ulysses", "usp": "cp=N:usp=UxR", "dp_shard": "dp=RxS",
        "dp_replicate": "dp=RxS",
    }  # fmt: skip
    if key in known:
        return f"did you mean `{known[key]}`?"
    near = get_close_matches(key.lower()[:100], KEYS, n=1)
    return f"did you mean `{near[0]}`?" if near else "`meshwright explain --help` has an example"


def _degree(key: str, text: str, mistakes: Mistakes, lowest: int = 1) -> int | None:
    if re.fullmatch(r"[0-9]{1,9}", text) and lowest <= int(text) <= 10**8:
        return int(text)
    mistakes.add(key, text or None, f"a whole number from {lowest} to 10^8")
    return None


def _read_degree(key: str, text: str, values: dict[str, object], mistakes: Mistakes) -> None:
    degree = _degree(key, text, mistakes)
    if degree is not None:
        values[key] = degree


def _read_flag(key: str, text: str, values: dict[str, object], mistakes: Mistakes) -> None:
    if text not in ("", "on", "off"):
        mistakes.add(key, text, f"`{key}`, `{key}=on` or `{key}=off`")
    values[key] = text != "off"


def _read_cp(key: str, text: str, values: dict[str, object], mistakes: Mistakes) -> None:
    degree_text, _, kind_text = text.partition(":")
    kind, _, split = kind_text.partition("=")
    degree = _degree(key, degree_text, mistakes)
    if kind and kind not in CP_KINDS:
        mistakes.add(key, text, f"cp=N or cp=N:KIND with KIND one of {' '.join(CP_KINDS[:-1])} usp=UxR")
    if degree is None or (kind and kind not in CP_KINDS):
        return
    values["cp"] = degree
    values["cp_kind"] = kind or "zigzag"
    values["ulysses"] = degree if kind == "ulysses" else 1
    if kind == "usp":
        match = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", split)
        if match is None or int(match[1]) * int(match[2]) != degree:
            mistakes.add(key, text, f"cp={degree}:usp=UxR with U x R = {degree}")
        else:
            values["ulysses"] = int(match[1])
    elif split:
        mistakes.add(key, text, f"cp={degree}:{kind}", problem="only usp takes a split")


def _read_pp(key: str, text: str, values: dict[str, object], mistakes: Mistakes) -> None:
    degree_text, _, schedule_text = text.partition(":")
    schedule, _, chunks = schedule_text.partition("*")
    degree = _degree(key, degree_text, mistakes)
    if schedule and schedule not in SCHEDULES:
        mistakes.add(key, text, f"pp=P or pp=P:SCHEDULE with SCHEDULE one of {' '.join(SCHEDULES)} (interleaved*v)")
    if degree is None or (schedule and schedule not in SCHEDULES):
        return
    values["pp"] = degree
    values["schedule"] = schedule or "1f1b"
    values["virtual_stages"] = 2 if schedule in TWO_CHUNK_SCHEDULES else 1
    if schedule == "interleaved":
        number = _degree(key, chunks, mistakes, lowest=2) if chunks else None
        if not chunks:
            mistakes.add(key, text, f"pp={degree}:interleaved*v with v of 2 or more", "say how many chunks each rank has")
        values["virtual_stages"] = number or 2
    elif chunks:
        mistakes.add(key, text, f"pp={degree}:{schedule}", problem="only interleaved takes *v")


def _read_stages(key: str, text: str, values: dict[str, object], mistakes: Mistakes) -> None:
    """``9,10*2,9``: numbers of layers, a repeated one with how often."""
    if not re.fullmatch(r"[0-9]{1,6}(\*[0-9]{1,6})?(,[0-9]{1,6}(\*[0-9]{1,6})?)*", text):
        mistakes.add(key, text or None, "numbers of layers, e.g. stages=9,10,10,9 or stages=9,10*2,9")
        return
    runs = [part.partition("*") for part in text.split(",")]
    if sum(int(times or 1) for _, _, times in runs) > MAX_STAGES:
        mistakes.add(key, text, f"at most {MAX_STAGES} numbers")
        return
    values[key] = tuple(int(number) for number, _, times in runs for _ in range(int(times or 1)))


def _print_stages(stages: tuple[int, ...]) -> str:
    """Runs of three and more as ``number*times``."""
    words: list[str] = []
    for number, run in groupby(stages):
        times = len(list(run))
        words += [f"{number}*{times}"] if times > 2 else [str(number)] * times
    return ",".join(words)


def _read_dp(key: str, text: str, values: dict[str, object], mistakes: Mistakes) -> None:
    replicate, cross, shard = text.rpartition("x")
    degree = _degree(key, shard, mistakes)
    copies = _degree(key, replicate, mistakes) if cross else 1
    if degree is not None and copies is not None:
        values["dp_replicate"], values["dp_shard"] = copies, degree


def _read_zero(key: str, text: str, values: dict[str, object], mistakes: Mistakes) -> None:
    stage, _, variant = text.partition(":")
    if stage not in ("0", "1", "2", "3") or variant not in ZERO_VARIANTS or (variant and stage != "3"):
        mistakes.add(key, text or None, "0 1 2 3 3:local 3:keep")
        return
    values["zero"], values["zero_variant"] = int(stage), variant


def _read_recompute(key: str, text: str, values: dict[str, object], mistakes: Mistakes) -> None:
    kind, _, number = text.partition("=")
    if kind not in RECOMPUTES or (number and kind != "full"):
        mistakes.add(key, text or None, "none selective full full=n")
        return
    values["recompute"] = kind
    if number:
        values["recompute_layers"] = _degree(key, number, mistakes)


def _read_order(key: str, text: str, values: dict[str, object], mistakes: Mistakes) -> None:
    if sorted(text.split("-")) != sorted(ORDER_AXES):
        mistakes.add(key, text or None, f"the axes {' '.join(ORDER_AXES)} joined by -, innermost first")
        return
    values["order"] = text


_READERS = {
    "tp": _read_degree, "sp": _read_flag, "vocab": _read_flag, "vocab_pad": _read_degree, "cp": _read_cp, "pp": _read_pp,
    "stages": _read_stages, "ep": _read_degree, "etp": _read_degree, "dp": _read_dp, "zero": _read_zero,
    "mb": _read_degree, "recompute": _read_recompute, "order": _read_order,
}  # fmt: skip
