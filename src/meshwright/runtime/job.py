"""A job: a function, its arguments, and the folder through which the ranks' results come back. No torch.

A folder holds ``program.pickle`` (arguments), and for each rank that has ended ``rank_N.result`` (a pickle) or
``rank_N.error`` (JSON), beside ``rank_N.out`` (what it printed) and ``rank_N.stack`` (stacks at a fatal signal).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from meshwright.runtime.failures import FailureKind, RankFailure, is_peer_error


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a rank needs to know to start; picklable and small.

    Attributes:
        folder: of the job, see above. world_size: ranks.
        module, module_file, function: where the function is; the file serves modules that are not on the path.
        path: sys.path of the caller.
        timeout_s: of the whole job, and of each collective.
        began_s: monotonic clock at the start. join: whether ranks join a process group before the function is called.
    """

    folder: str
    world_size: int
    module: str
    module_file: str
    function: str
    path: tuple[str, ...]
    timeout_s: float
    began_s: float
    join: bool = True

    def file(self, rank: int, kind: str) -> Path:
        return Path(self.folder) / f"rank_{rank}.{kind}"

    @property
    def program_file(self) -> Path:
        return Path(self.folder) / "program.pickle"


def make_job(
    folder: Path, function: Callable[..., Any], world_size: int, args: tuple[Any, ...], timeout_s: float, join: bool = True
) -> Job:
    """Write the arguments into ``folder``.

    Raises:
        TypeError: the function is not at the top level of a module, or the arguments do not pickle.
    """
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", "") or "")
    if module is None or getattr(module, name, None) is not function:
        raise TypeError(f"{function!r} cannot be sent to other processes: it must be a function at the top level of a module")
    job = Job(
        folder=str(folder), world_size=world_size, module=module.__name__, module_file=getattr(module, "__file__", None) or "",
        function=name, path=tuple(sys.path), timeout_s=timeout_s, began_s=time.monotonic(), join=join,
    )  # fmt: skip
    try:
        job.program_file.write_bytes(pickle.dumps(args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(f"the arguments of {name} cannot be sent to other processes: {error}") from None
    return job


_loaded_files: dict[str, ModuleType] = {}


def load_module(job: Job) -> ModuleType:
    """Import the function's module; by its file where the name does not lead there (scripts, test modules)."""
    for entry in job.path:
        if entry not in sys.path:
            sys.path.append(entry)
    if job.module in sys.modules and job.module != "__main__":
        return sys.modules[job.module]
    if job.module != "__main__":
        try:
            return importlib.import_module(job.module)
        except ModuleNotFoundError:
            if not job.module_file:
                raise
    if job.module_file in _loaded_files:
        return _loaded_files[job.module_file]
    # A script must not find itself to be the main program again, or it would start its ranks anew.
    name = "__mp_main__" if job.module == "__main__" else job.module
    spec = importlib.util.spec_from_file_location(name, job.module_file)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"cannot load {job.module_file}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = _loaded_files[job.module_file] = module
    if job.module == "__main__":
        sys.modules["__main__"] = module  # classes of the script unpickle under this name
    spec.loader.exec_module(module)
    return module


def call(job: Job) -> Any:
    """Call the job's function with its arguments, in this process."""
    function = getattr(load_module(job), job.function)
    args = pickle.loads(job.program_file.read_bytes())
    return function(*args)


def write_result(job: Job, rank: int, result: Any) -> None:
    """Leave a rank's result; it is there as a whole or not at all."""
    _write_whole(job.file(rank, "result"), pickle.dumps(result))


def write_error(job: Job, rank: int, error: BaseException) -> None:
    """Leave what a rank raised, with its traceback."""
    message = "".join(traceback.format_exception_only(error)).strip()
    stack = "".join(traceback.format_exception(error))
    values = {"message": message, "stack": stack, "when_s": time.monotonic() - job.began_s}
    _write_whole(job.file(rank, "error"), json.dumps(values).encode())


def _write_whole(path: Path, content: bytes) -> None:
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(content)
    part.replace(path)


def read_error(job: Job, rank: int, output: str) -> RankFailure | None:
    """What a rank raised, None if it left nothing."""
    try:
        values = json.loads(job.file(rank, "error").read_bytes())
    except (OSError, ValueError):
        return None
    message = str(values["message"])
    kind: FailureKind = "peer" if is_peer_error(message) else "exception"
    return RankFailure(rank=rank, kind=kind, when_s=values["when_s"], message=message, stack=values["stack"], output=output)


def tail(path: Path, num_lines: int = 20) -> str:
    """The last lines of a file, "" if it is not there."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-num_lines:])
