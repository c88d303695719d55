"""The process in which facts are tried: torch is imported once, and each fact gets a fork of its own.

A fact can change threads, seeds and flags as it likes, die, or hang; the next one does not notice. It is started by
:mod:`bitproof.facts.running` as ``python -m bitproof.facts.process FOLDER`` and ends when its standard input does.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from bitproof.facts import program

_ANSWER = "answer.json"
_OTHER_ANSWER = "other.json"
_NOT_PASSED_ON = ("PYTHONPATH", "PYTHONHOME")
"""Variables that would give the other interpreter the packages of this one."""


def main() -> None:
    """Try the facts that the folder's ``jobs.json`` lists; print one line of JSON for each."""
    folder = Path(sys.argv[1])
    # Slow imports, shared by all facts. No operation may run here: a pool of threads would not survive a fork.
    import numpy as np  # noqa: F401, PLC0415
    import torch  # noqa: PLC0415

    for job in json.loads((folder / "jobs.json").read_text("utf-8")):
        if "torch.optim" in job["program"]:
            import torch._dynamo  # noqa: F401, PLC0415  # what torch.optim imports at its first use, in seconds
        answer = _in_fork(job, folder / job["id"])
        try:
            sys.stdout.write(json.dumps({"id": job["id"], **answer}) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            _abandon(folder)
        shutil.rmtree(folder / job["id"])


def _in_fork(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    folder.mkdir()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        _try(job, folder)
    with contextlib.suppress(PermissionError, ProcessLookupError):  # it has done so itself already
        os.setpgid(child, child)
    ended = _wait(child, folder.parent, job["patience"])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    answer = folder / _ANSWER
    if answer.is_file():
        return dict(json.loads(answer.read_text("utf-8")))
    if not ended:
        return {"error": f"it took more than {job['patience']:g} s"}
    if os.WIFSIGNALED(status):
        return {"error": f"its process was ended by {signal.Signals(os.WTERMSIG(status)).name}"}
    return {"error": f"its process ended with status {os.waitstatus_to_exitcode(status)}"}


def _wait(child: int, folder: Path, patience: float) -> bool:
    """Wait until a child has ended; False if that took too long. Nobody waits any more if standard input ends."""
    ending = os.pidfd_open(child)
    try:
        readable, _, _ = select.select([ending, 0], [], [], patience)
    finally:
        os.close(ending)
    if 0 in readable and ending not in readable:
        os.killpg(child, signal.SIGKILL)
        _abandon(folder)
    return bool(readable)


def _abandon(folder: Path) -> NoReturn:
    """Clean up and end: whoever asked is gone, and can do neither."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _try(job: dict[str, Any], folder: Path) -> None:
    """Run a fact's program and end."""
    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDONLY)
    printed = os.open("printed.txt", os.O_WRONLY | os.O_CREAT)
    for number, target in enumerate((nothing, printed, printed)):
        os.dup2(target, number)
    answer: dict[str, Any]
    try:
        answer = {"values": program.run(job["program"], job["id"])}
        if job["other_python"]:
            answer["values"]["other"] = _in_other(job)
    except BaseException as error:  # noqa: BLE001  # whatever a program ends with is what is reported
        traceback.print_exc()
        answer = {"error": _last_line(error)}
    Path(f"{_ANSWER}.tmp").write_text(json.dumps(answer), "utf-8")
    Path(f"{_ANSWER}.tmp").replace(_ANSWER)
    sys.stdout.flush()
    os._exit(0)


def _in_other(job: dict[str, Any]) -> dict[str, Any]:
    """Run a fact's program in the other interpreter too."""
    Path("program.py").write_text(job["program"], "utf-8")
    done = subprocess.run(
        [job["other_python"], program.__file__, "program.py", _OTHER_ANSWER],
        env={key: value for key, value in os.environ.items() if key not in _NOT_PASSED_ON},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"error": lines[-1]}
    return dict(json.loads(Path(_OTHER_ANSWER).read_text("utf-8")))


def _last_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()


if __name__ == "__main__":
    main()
