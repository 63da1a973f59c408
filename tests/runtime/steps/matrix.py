"""What is proved here: families (small_models.py) and layouts, one or two for each thing that can go wrong. 2, 4 or 8 ranks.

The long list, with traffic and memory, is tests/prove/matrix.txt.
"""

from __future__ import annotations

TENSOR = [
    ("llama", "tp=2 dp=1x1"),
    ("llama", "tp=2 sp dp=1x1"),
    ("llama", "tp=4 dp=1x1"),  # 2 kv heads on 4 ranks, a vocabulary of 50 on 4
    ("llama", "tp=2 sp vocab=off dp=1x1"),
    ("llama", "tp=2 vocab=off vocab_pad=16 dp=1x1"),
    ("six_heads", "tp=2 cp=3 dp=1x1"),
    ("biases", "tp=4 sp dp=1x1 zero=1"),  # biases of replicated kv heads
    ("mistral", "tp=2 sp dp=1x1"),
    ("qwen3", "tp=4 dp=1x1"),  # norms of heads, summed over tp without sp
    ("gpt2", "tp=2 sp vocab=off dp=1x1"),
    ("gpt2", "tp=4 sp dp=1x2"),
    ("bloom", "tp=2 dp=1x1"),
    ("deepseek", "tp=2 sp vocab=off dp=1x1"),
    ("deepseek_v2", "tp=2 dp=1x1"),
    ("deepseek_v2", "tp=4 sp dp=1x1"),
]

CONTEXT = [
    ("llama", "cp=2:ring dp=1x1"),
    ("llama", "tp=2 sp cp=2 dp=1x1"),
    ("llama", "cp=2:striped dp=1x1"),
    ("llama", "cp=4:ulysses dp=1x1"),  # 2 kv heads on 4 ranks
    ("llama", "tp=4 sp cp=2:allgather dp=1x1"),
    ("llama", "tp=2 cp=4:usp=2x2 dp=1x1"),
    ("mistral", "cp=4 dp=1x1"),
    ("mistral", "tp=2 sp cp=2:allgather dp=1x1"),
    ("gpt2", "tp=2 sp cp=2:striped dp=1x2 zero=1"),
    ("bloom", "cp=4:usp=2x2 dp=1x1"),
    ("gpt_oss", "cp=2:ulysses dp=1x1"),  # sinks of shared-out heads
    ("deepseek", "tp=2 sp cp=2:ulysses dp=1x1"),
]

DATA = [
    ("llama", "dp=2x2 zero=0"),
    ("llama", "dp=2x2 zero=1"),
    ("llama", "dp=1x3 zero=2 mb=2"),  # shards of unequal rows
    ("llama", "dp=1x3 zero=3"),
    ("llama", "dp=2x2 zero=3:local"),
    ("llama", "dp=2x2 zero=3:keep"),
    ("llama", "tp=4 dp=1x2 zero=2"),
    ("llama", "tp=4 dp=1x2 zero=3"),
    ("llama", "tp=2 sp dp=2x2 zero=3 order=dp-tp-cp-ep-pp"),
    ("llama", "tp=2 sp cp=2 dp=1x2 zero=1 order=cp-tp-ep-dp-pp"),
    ("bloom", "dp=1x2 zero=3:local"),
    ("deepseek", "tp=2 sp dp=1x2 zero=3"),
]

EXPERTS = [
    ("mixtral", "tp=2 dp=1x1"),
    ("mixtral", "tp=2 sp ep=2 dp=1x2"),
    ("mixtral", "ep=2 dp=2x2 zero=3"),
    ("mixtral", "tp=2 sp cp=2:ulysses ep=4 etp=1 dp=1x1 zero=2"),
    ("qwen3_moe", "tp=2 sp ep=8 etp=1 dp=1x4 zero=1"),  # one expert per rank: some get no token
    ("gpt_oss", "tp=2 sp ep=2 dp=1x2 zero=3"),
    ("deepseek", "tp=2 ep=2 dp=1x2 zero=1"),
    ("deepseek", "tp=2 sp ep=4 etp=1 cp=2 dp=1x2 zero=2"),
]

RECOMPUTE = [
    ("llama", "recompute=full=1 tp=2 sp dp=1x2 zero=3"),
    ("llama", "recompute=selective cp=4:usp=2x2 tp=2 sp dp=1x1"),
    ("gpt_oss", "recompute=full tp=2 sp ep=2 dp=1x2 zero=3"),
    ("deepseek", "recompute=full tp=2 ep=2 dp=1x2 zero=3"),
]

DROPOUT = [
    ("gpt2", "tp=2 sp cp=2:ulysses dp=1x1 recompute=selective"),
    ("deepseek", "tp=2 sp ep=2 dp=1x2 recompute=full zero=3"),
]
