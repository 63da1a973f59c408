"""Pipeline schedules: for each rank the order of its computations and messages; one file per schedule, check.py proves them."""

from meshwright.schedule.actions import Action, Kind, Schedule
from meshwright.schedule.build import build, placement, schedule_mistakes
from meshwright.schedule.check import check
from meshwright.schedule.communication import with_communication, without_communication
from meshwright.schedule.csv_format import print_csv, read_csv, write_csv
from meshwright.schedule.fit import check_fit
from meshwright.schedule.zero_bubble_automatic import PassTimes

__all__ = [
    "Action", "Kind", "PassTimes", "Schedule", "build", "check", "check_fit", "placement", "print_csv", "read_csv", "schedule_mistakes",
    "with_communication", "without_communication", "write_csv",
]  # fmt: skip
