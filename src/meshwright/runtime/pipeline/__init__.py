"""The executor of pipeline schedules: a rank's action list, carried out.

Read in this order: executor.py (the list), chunk.py (a chunk's forward and backward), messages.py (what travels), sums.py (gradients of
what two stages hold).
"""
