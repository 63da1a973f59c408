"""Ranks that end well, and ranks that end badly: the first cause first, with its stack, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from meshwright.errors import InputError
from meshwright.runtime.failures import RankFailure, RanksFailed
from meshwright.runtime.launch import ForkServer, run_ranks

pytestmark = pytest.mark.dist


def summed(value: float) -> tuple[int, float, int]:
    tensor = torch.tensor(value + dist.get_rank(), dtype=torch.float64)
    dist.all_reduce(tensor)
    return dist.get_rank(), float(tensor), torch.get_num_threads()


def test_results_come_in_order_of_rank() -> None:
    assert run_ranks(summed, 4, (10.0,)) == [(rank, 46.0, 1) for rank in range(4)]


def own_pid() -> int:
    return os.getpid()


def raises_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError("this rank is at fault")
    dist.all_reduce(torch.ones(4))


def test_the_rank_that_raised_comes_before_those_that_lost_it() -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(raises_on, 3, (1,), timeout_s=20)
    first = caught.value.first
    assert (first.rank, first.kind) == (1, "exception")
    assert "this rank is at fault" in first.message and "raises_on" in first.stack
    assert {failure.kind for failure in caught.value.failures[1:]} <= {"peer", "hang"}
    assert "rank 1 of 3 failed first" in str(caught.value)


def kills_itself(folder: str) -> None:
    Path(folder, str(dist.get_rank())).write_text(str(os.getpid()))
    dist.barrier()
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def test_a_killed_rank_is_named_and_nothing_stays_behind(tmp_path) -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(kills_itself, 3, (str(tmp_path),), timeout_s=20)
    assert (caught.value.first.rank, caught.value.first.kind) == (2, "signal")
    assert "SIGKILL" in caught.value.first.message
    for file in tmp_path.iterdir():
        assert not Path("/proc", file.read_text()).exists()


def aborts() -> None:
    # gloo ends the process by a C++ exception where the sizes of an all_reduce differ
    dist.all_reduce(torch.ones(4 + 100_000 * dist.get_rank()))


def test_an_abort_is_reported_with_the_stack_that_led_to_it() -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(aborts, 2, timeout_s=20)
    aborted = [failure for failure in caught.value.failures if failure.kind == "signal"]
    assert aborted and "SIGABRT" in aborted[0].message
    assert "all_reduce" in aborted[0].stack and "aborts" in aborted[0].stack


def hangs(rank: int) -> None:
    if dist.get_rank() == rank:
        time.sleep(60)
    dist.all_reduce(torch.ones(4))


def test_a_hang_ends_within_the_limit_and_names_the_rank_that_does_not_wait() -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(hangs, 3, (1,), timeout_s=2)
    first, *others = caught.value.failures
    assert (first.rank, first.kind) == (1, "hang")
    assert "time.sleep" in first.stack or "in hangs" in first.stack
    assert not first.waits_in_collective and all(failure.waits_in_collective for failure in others)
    assert "in hangs" in first.where
    assert "rank 1 of 3 is busy outside of any collective" in str(caught.value)


def leaves_early() -> int:
    if dist.get_rank() == 0:
        os._exit(0)
    dist.all_reduce(torch.ones(4))
    return 1


def test_a_rank_that_leaves_without_a_result_is_a_failure() -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(leaves_early, 2, timeout_s=20)
    assert (caught.value.first.rank, caught.value.first.kind) == (0, "exit")


def finishes_first() -> None:
    if dist.get_rank() != 0:
        dist.send(torch.ones(1), 0)


def test_a_rank_that_waits_for_one_that_has_finished_is_told() -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(finishes_first, 2, timeout_s=3)
    assert caught.value.first.rank == 1 and caught.value.finished == (0,)
    assert "had finished: 0" in str(caught.value)


def prints_and_dies() -> None:
    print("the last words")
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_rank_printed_is_kept() -> None:
    with pytest.raises(RanksFailed, match="the last words"):
        run_ranks(prints_and_dies, 1, timeout_s=20)


def starts_a_child(folder: str) -> None:
    child = subprocess.Popen(["sleep", "60"])
    Path(folder, "child").write_text(str(child.pid))


def test_what_a_rank_started_ends_with_it(tmp_path) -> None:
    run_ranks(starts_a_child, 1, (str(tmp_path),), timeout_s=20)
    child = Path("/proc", (tmp_path / "child").read_text(), "stat")
    for _ in range(200):
        if not child.exists() or child.read_text().split()[2] == "Z":
            break
        time.sleep(0.01)
    else:
        pytest.fail("the child of a rank lives on")


def test_a_function_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(TypeError, match="top level"):
        run_ranks(lambda: None, 1)
    with pytest.raises(TypeError, match="arguments of summed"):
        run_ranks(summed, 1, (lambda: None,))


def test_the_server_goes_on_after_a_failed_job_and_ends_with_its_pipe() -> None:
    assert len(set(run_ranks(own_pid, 2))) == 2
    server = ForkServer()
    assert server.alive
    server.close()
    assert not server.alive


def test_failures_are_ordered_by_cause() -> None:
    def failure(rank: int, kind, when_s: float, stack: str = "") -> RankFailure:
        return RankFailure(rank=rank, kind=kind, when_s=when_s, message=kind, stack=stack)

    waiting = 'Current thread 0x01 (most recent call first):\n  File "/x/torch/distributed/c10d.py", line 1 in all_reduce'
    failures = [failure(0, "peer", 0.1), failure(1, "hang", 3, waiting), failure(2, "hang", 3), failure(3, "signal", 0.2)]
    assert [each.rank for each in RanksFailed(failures, [], 4, 5).failures] == [3, 2, 1, 0]


PROGRAM = """
import torch, torch.distributed as dist
from meshwright.runtime.launch import run_ranks

class Answer:
    def __init__(self, value): self.value = value

def work(value, fail):
    if fail and dist.get_rank() == 1:
        raise ValueError("rank one cannot")
    tensor = torch.tensor(value)
    dist.all_reduce(tensor)
    return Answer(int(tensor))

if __name__ == "__main__":
    import sys
    answers = [a.value for a in run_ranks(work, 2, (21, len(sys.argv) > 1), timeout_s=60)]
    sys.stdout.write(f"answers {answers}\\n")  # one write: two ranks share the pipe
"""


def run_program(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110)


HANGING = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts these tests in the background has it ignored
from meshwright.runtime.launch import run_ranks

def wait(folder):
    open(os.path.join(folder, str(os.getpid())), "w").close()
    time.sleep(300)

if __name__ == "__main__":
    run_ranks(wait, 2, (sys.argv[1],), timeout_s=300)
"""


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie whose parent is gone counts as that)."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition) -> bool:
    for _ in range(6000):
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_the_process_that_started_them(tmp_path, number: signal.Signals) -> None:
    program, pids = tmp_path / "program.py", tmp_path / "pids"
    program.write_text(HANGING)
    pids.mkdir()
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    starter = subprocess.Popen([sys.executable, str(program), str(pids)], env=environment, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: len(list(pids.iterdir())) == 2)
        starter.send_signal(number)
        starter.wait(timeout=60)
        ranks = [int(file.name) for file in pids.iterdir()]
        assert wait_until(lambda: all(map(gone, ranks)))
    finally:
        starter.kill()


def test_without_torch_one_line_names_the_extra(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"meshwright\[runtime\]"):
        run_ranks(summed, 2, (1.0,))


def test_torchrun_with_another_number_of_ranks_is_refused(monkeypatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "RANK": "0", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="nproc-per-node"):
        run_ranks(summed, 2, (1.0,))


@pytest.mark.slow
def test_the_same_program_runs_alone_and_under_torchrun(tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    alone = run_program([sys.executable, str(program)], tmp_path)
    assert alone.stdout == "answers [42, 42]\n", alone.stderr
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    together = run_program(torchrun, tmp_path)
    assert together.stdout == "answers [42, 42]\n" * 2, together.stderr
    failed = run_program([*torchrun, "fail"], tmp_path)
    assert failed.returncode == 1
    assert "rank one cannot" in failed.stderr and "Root Cause" in failed.stderr
