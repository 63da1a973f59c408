"""Who computes, waits and sends when; what one slow rank does to all."""

from meshwright.timeline.costs import Costs, uniform_costs
from meshwright.timeline.critical_path import critical_path
from meshwright.timeline.events import Event, Timeline
from meshwright.timeline.memory import activation_memory
from meshwright.timeline.simulate import simulate
from meshwright.timeline.slow import Slow, parse_slow, slow_down
from meshwright.timeline.summary import culprit_text, summary
from meshwright.timeline.waiting import culprit, waiting_s, waits

__all__ = [
    "Costs", "Event", "Slow", "Timeline", "activation_memory", "critical_path", "culprit", "culprit_text", "parse_slow", "simulate",
    "slow_down", "summary", "uniform_costs", "waiting_s", "waits",
]  # fmt: skip
