"""Why a layout won: the decisions in their order, each with the number that decided it and what the next-best choice costs.

Every cost is the fastest layout that fits and decides this one thing otherwise, everything else free.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.estimate import Estimate
from meshwright.search.evaluate import Question
from meshwright.search.rank import Candidate, Ranking
from meshwright.spec.parameters import parameter_count
from meshwright.spec.workload import PRECISIONS
from meshwright.units import DTYPE_BYTES, format_count, format_memory, format_rate, format_seconds


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision: what was chosen and why, and the best layout that chooses otherwise.

    Attributes:
        other: None where no other layout fits, or where the inputs decide and not we (``given``).
    """

    topic: str
    choice: str
    reason: str
    other: Candidate | None = None
    given: bool = False

    def sentence(self, step_s: float) -> str:
        """The decision in words, with its price."""
        return f"{self.choice}: {self.reason}{'' if self.given else _cost(self.other, step_s)}"


def _cost(other: Candidate | None, step_s: float) -> str:
    if other is None:
        return "; no alternative that was asked for fits"
    slower = other.step_s / step_s - 1.0
    if abs(slower) < 0.001:
        return f"; a tie with {other.layout}"
    return f"; otherwise at best {format_seconds(other.step_s)} ({100 * slower:+.1f}%): {other.layout}"


def explain_choice(question: Question, ranking: Ranking, winner: Estimate) -> list[Decision]:
    """The decisions behind the fastest layout."""
    layout = winner.layout
    decisions = [_one_gpu(question)]
    if question.space.gpus == 1:
        return [*decisions, _recompute(question, ranking, winner)]
    decisions += [_first_tier(question), _tensor(ranking, winner)]
    if layout.tp > 1:
        decisions.append(_sequence(ranking, winner))
    decisions.append(_across(ranking, winner))
    if question.space.model.moe is not None:
        decisions.append(_experts(ranking, winner))
    decisions.append(_context(question, ranking, winner))
    decisions.append(_sharding(ranking, winner))
    decisions.append(_recompute(question, ranking, winner))
    return decisions


def _one_gpu(question: Question) -> Decision:
    model, device = question.space.model, question.cluster.device
    recipe = PRECISIONS[question.space.workload.precision or "bf16"]
    weight, gradient = int(DTYPE_BYTES[recipe.weight]), int(DTYPE_BYTES[recipe.gradient])
    per_parameter = weight + gradient + recipe.state_bytes
    need = parameter_count(model) * per_parameter
    holds = need <= question.memory_fraction * device.memory_bytes
    reason = (
        f"weights, gradients and Adam state are {per_parameter} bytes x {format_count(parameter_count(model))} parameters = "
        f"{format_memory(need)}; one {device.name} has {format_memory(device.memory_bytes)}"
    )
    return Decision("one GPU", "one GPU holds the state" if holds else "one GPU cannot hold it", reason, given=True)


def _first_tier(question: Question) -> Decision:
    tiers, gpus = question.cluster.tiers, question.space.gpus
    inner, outer = tiers[0], tiers[min(1, len(tiers) - 1)]
    choice = f"{inner.name} joins {inner.size} GPUs" if inner.size else f"one tier, {inner.name}"
    rates = [tier.loaded_bandwidth_bytes_per_s for tier in (inner, outer)]
    reason = f"{format_rate(rates[0])} per direction and GPU when all send"
    if inner.size is not None and gpus > inner.size:
        reason += f", {format_rate(rates[1])} beyond: a GPU's bytes take {rates[0] / rates[1]:.2g} times as long across nodes"
    return Decision("first tier", choice, reason, given=True)


def _tensor(ranking: Ranking, winner: Estimate) -> Decision:
    tp = winner.layout.tp
    reason = f"its collectives are exposed for {_share(winner, 'tp_s')} of the step" if tp > 1 else "no layer needs to be cut"
    return Decision("tp", f"tp={tp}", reason, ranking.best(lambda column: column.tp != tp))


def _sequence(ranking: Ranking, winner: Estimate) -> Decision:
    sp = winner.layout.sp
    reason = (
        "what is saved between the tensor-parallel pairs is cut by tp, for the same bytes forward" if sp else "nothing needs the memory"
    )
    other = ranking.best(lambda column: False if column.sp == sp else column.tp > 1)
    return Decision("sp", f"sequence parallel {'on' if sp else 'off'}", reason, other)


def _across(ranking: Ranking, winner: Estimate) -> Decision:
    """Pipeline stages or more data parallelism for the GPUs beyond tp x cp."""
    layout = winner.layout
    if layout.pp > 1:
        reason = f"the busiest stage waits {_share(winner, 'bubble_s')} of the step and sends for {_share(winner, 'pp_s')}"
        other = ranking.best(lambda column: column.pp == 1)
        return Decision("pp", f"pp={layout.pp} {layout.schedule}", reason, other)
    reason = f"data parallelism exposes {_share(winner, 'dp_s')} of the step"
    return Decision("pp", "no pipeline", reason, ranking.best(lambda column: column.pp > 1))


def _experts(ranking: Ranking, winner: Estimate) -> Decision:
    layout = winner.layout
    reason = f"dispatch and combine are exposed for {_share(winner, 'ep_s')} of the step"
    return Decision("ep", f"ep={layout.ep} etp={layout.etp}", reason, ranking.best(lambda column: column.ep != layout.ep))


def _context(question: Question, ranking: Ranking, winner: Estimate) -> Decision:
    layout, seq = winner.layout, question.space.workload.seq
    if layout.cp == 1:
        return Decision("cp", "no context parallelism", f"{seq:,} tokens fit without cutting", ranking.best(lambda column: column.cp > 1))
    reason = f"its exchange is exposed for {_share(winner, 'cp_s')} of the step; each rank keeps {seq // layout.cp:,} tokens"
    return Decision("cp", f"cp={layout.cp} {layout.cp_kind}", reason, ranking.best(lambda column: column.cp == 1))


def _sharding(ranking: Ranking, winner: Estimate) -> Decision:
    layout = winner.layout
    name = f"zero={layout.zero}" + (f":{layout.zero_variant}" if layout.zero_variant else "")
    ranks = layout.dp_shard * layout.cp
    where = f"state is cut over {ranks} ranks" if layout.zero and ranks > 1 else "state is whole on every rank"
    reason = f"{where}, {_share(winner, 'dp_s')} of the step is exposed"
    other = ranking.best(lambda column: (column.zero, column.zero_variant) != (layout.zero, layout.zero_variant))
    return Decision("zero", f"{name} dp={layout.dp_replicate}x{layout.dp_shard}", reason, other)


def _recompute(question: Question, ranking: Ranking, winner: Estimate) -> Decision:
    layout, device = winner.layout, question.cluster.device
    room = question.memory_fraction * device.memory_bytes - winner.memory_bytes - winner.reserved_bytes
    reason = f"{format_memory(winner.memory_bytes)} at the peak leave {format_memory(max(room, 0))}"
    if layout.recompute != "none":
        reason = f"costs {_share(winner, 'recompute_s')} of the step"
    other = ranking.best(lambda column: column.recompute != layout.recompute)
    return Decision("recompute", f"recompute={layout.recompute}", reason, other)


def _share(winner: Estimate, part: str) -> str:
    return f"{100 * winner.parts[part] / winner.step_s:.1f}%"


def in_words(decisions: list[Decision], step_s: float) -> str:
    """All decisions, one sentence each."""
    return "; ".join(decision.sentence(step_s) for decision in decisions)
