"""A long command runs once, whatever the number of test workers."""

import fcntl
import json
import os
import resource
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from kit.proofs import Answer, bitproof, processes_of


@dataclass(frozen=True)
class Ran:
    """What a command answered, how many seconds of processor time it took, and what it left behind."""

    answer: Answer
    seconds: float
    files: list[str]
    processes: list[int]


def once(factory: pytest.TempPathFactory, *words: str) -> Ran:
    """Run a command of bitproof in a folder of its own, or return what it did for another worker."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / f"{words[0]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _kept(shared / f"{words[0]}.json", lambda: _run(shared / words[0], *words))


def _kept(path: Path, make: Callable[[], Ran]) -> Ran:
    if not path.exists():
        path.write_text(json.dumps(asdict(make())))
    kept = json.loads(path.read_text())
    return Ran(**kept | {"answer": Answer(**kept["answer"])})


def _run(folder: Path, *words: str) -> Ran:
    folder.mkdir()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = bitproof(*words, cwd=folder, env={**os.environ, "TMPDIR": str(folder)})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(answer, seconds, [str(path) for path in folder.rglob("*")], processes_of(folder))
