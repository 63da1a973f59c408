"""How long a pipeline takes by formula, one file per family of schedules; the simulator (timeline/) is what they must equal."""

from meshwright.schedule.closed_form.span import pipeline_span_s

__all__ = ["pipeline_span_s"]
