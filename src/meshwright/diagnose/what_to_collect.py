"""What makes the next hang diagnosable: environment variables and commands, each with the file that it leaves.

Names and meanings: docs.pytorch.org, "Flight Recorder for Debugging Stuck Jobs" and "ProcessGroupNCCL Environment Variables";
docs.nvidia.com, NCCL "Environment Variables"; py-spy's README.
"""

from __future__ import annotations

WHAT_TO_COLLECT = """\
Before the job starts, on every rank:

  export TORCH_FR_BUFFER_SIZE=20000              # the last 20,000 collectives of each rank (once: TORCH_NCCL_TRACE_BUFFER_SIZE)
  export TORCH_NCCL_DUMP_ON_TIMEOUT=1            # a watchdog timeout writes them
  export TORCH_FR_DUMP_TEMP_FILE=/shared/dumps/rank_   # to this name plus the rank (before: TORCH_NCCL_DEBUG_INFO_TEMP_FILE)
  export TORCH_CPP_LOG_LEVEL=INFO                # watchdog and heartbeat lines, with last enqueued and last completed work
  export NCCL_DEBUG=WARN NCCL_DEBUG_FILE=/shared/logs/nccl-%h-%p.log
  torchrun --redirects 3 --log-dir /shared/logs ...    # one log per rank

While it hangs:

  py-spy dump --pid PID > /shared/logs/stack-rank_N.txt          # of every rank: where it waits, and who waits elsewhere

For a slow step:

  torch.profiler over two steps on every rank, record_shapes=True; export_chrome_trace("trace_rankN.json.gz")

Then:

  meshwright diagnose /shared/dumps /shared/logs
"""
