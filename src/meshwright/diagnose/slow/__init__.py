"""Where the time of a step goes, and who makes the others wait.

    Trace (recording/)       -> step_split.py: compute by phase, exposed communication, idling by cause
                             -> meetings.py: one collective on all ranks: transfer, waiting, the late rank
                             -> profile.py: both, for all ranks of a job
    Operations (recording/)  -> operation_graph.py -> what_if.py: the step played again without what was slow

The rules on slowness under rules/ read these.
"""
