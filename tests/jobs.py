"""Jobs of the catalog for the tests of the views: read and checked as the command line does it, once each."""

from __future__ import annotations

from functools import cache

from meshwright.api import numbers_of
from meshwright.job import Asked, Job, resolve
from meshwright.priced import Priced

LAYOUTS = {
    "fsdp": ("llama-3.1-70b", "tp=8 sp dp=1x8 zero=3 mb=1"),
    "hsdp": ("llama-3.1-70b", "tp=8 sp dp=2x4 zero=3:local mb=1"),
    "keep": ("llama-3.1-70b", "tp=8 sp dp=1x8 zero=3:keep mb=1"),
    "zero2-kv-copies": ("llama-3.1-70b", "tp=16 sp dp=1x4 zero=2 mb=1"),
    "without-sp": ("llama-3.1-70b", "tp=8 dp=2x4 mb=2 recompute=full"),
    "pipeline": ("llama-3.1-70b", "tp=8 sp pp=4 dp=1x2 zero=1 mb=1"),
    "interleaved": ("llama-3.1-70b", "tp=4 pp=4:interleaved*4 dp=1x4 mb=1 recompute=full=2"),
    "dualpipe": ("llama-3.1-70b", "tp=8 sp pp=4:dualpipe dp=1x2 zero=1 mb=1"),
    "zigzag": ("llama-3.1-70b", "tp=4 sp cp=4 dp=1x4 zero=1 mb=1"),
    "ring": ("llama-3.1-70b", "tp=4 cp=4:ring dp=1x4 mb=1 recompute=selective"),
    "ulysses": ("llama-3.1-70b", "tp=2 cp=4:ulysses dp=1x8 zero=3 mb=1 recompute=full"),
    "usp": ("llama-3.1-70b", "tp=2 sp cp=8:usp=4x2 dp=1x4 zero=1 mb=1"),
    "allgather": ("llama-3.1-70b", "tp=4 cp=4:allgather dp=1x4 mb=1"),
    "vocab-off": ("llama-3.1-70b", "tp=8 sp vocab=off dp=1x8 zero=1 mb=1"),
    "gpt2-tied": ("gpt2-xl", "tp=5 pp=2 dp=1x4 mb=2"),
    "experts": ("qwen3-30b-a3b", "tp=4 sp ep=16 etp=1 dp=1x16 zero=1 mb=1"),
    "experts-etp": ("qwen3-30b-a3b", "tp=4 ep=4 dp=2x8 zero=1 mb=1"),
    "mla-mtp": ("deepseek-v3", "tp=8 sp pp=8 stages=7,8,8,8,8,8,8,6 ep=16 etp=1 dp=1x8 zero=1 mb=1"),
    "windows": ("gpt-oss-120b", "tp=8 sp cp=2:ring ep=8 etp=1 dp=1x8 zero=1 mb=1"),
}
"""Layouts in which every key of a layout appears, by a name for test ids: (model, layout)."""

GPT2_SEQ = 1000


@cache
def job(model: str, *layouts: str, **said: object) -> Job:
    """A job on H100 with 8,192 tokens (GPT-2: 1,000) and 512 sequences, unless something else is said."""
    words = {"cluster": "h100-sxm", "seq": GPT2_SEQ if model.startswith("gpt2") else 8192, "batch": 512, **said}
    return resolve(Asked(subject=model, layouts=layouts, **words))  # type: ignore[arg-type]


@cache
def numbers(model: str, layout: str, **said: object) -> Priced:
    """Its priced ledger."""
    return numbers_of(job(model, layout, **said))


def named(name: str) -> Priced:
    """The priced ledger of one of LAYOUTS."""
    return numbers(*LAYOUTS[name])
