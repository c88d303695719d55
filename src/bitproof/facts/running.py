"""Try facts, in a process of their own, and judge what they left behind."""

import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bitproof.errors import LaunchError, UsageError
from bitproof.facts.fact import Fact, Outcome
from bitproof.prove.process import MARKER, kill_tree, last_lines

PATIENCE = 60.0
"""Seconds that one fact may take."""
_OTHER_PATIENCE = 180.0
"""Seconds that it may take if a second interpreter imports its torch too."""
_CHECK_PATIENCE = 30.0


class Trials:
    """Facts that are being tried, in order, while whoever asks does something else.

    Leaving the block ends every process and removes every file of it.

    Args:
        facts: to try, in this order.
        other_python: a second interpreter, for facts that compare two.
        patience: seconds that one fact may take.
    """

    def __init__(self, facts: Sequence[Fact], *, other_python: Path | None = None, patience: float = PATIENCE) -> None:
        self._facts = facts
        self._patience = patience
        self._other_python = other_python
        self._answers: dict[str, dict[str, Any]] = {}
        self._marker = f"facts.{uuid.uuid4().hex}"

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="bitproof-facts-")
        try:
            self._process = self._start(Path(self._folder.name))
        except BaseException:
            kill_tree(self._marker)
            self._folder.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kill_tree(self._marker, self._process.pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._folder.cleanup()

    def outcome(self, fact: Fact) -> Outcome:
        """Return what became of one of the facts, once it is known.

        Raises:
            LaunchError: the process in which they are tried ended.
        """
        while fact.id not in self._answers:
            answer = self._next()
            self._answers[answer["id"]] = answer
        answer = self._answers[fact.id]
        if "error" in answer:
            return Outcome("cannot-be-tried", f"Its code ended with an error here: {answer['error']}")
        verdict, seen = fact.judge(answer["values"])
        return Outcome(verdict, seen, {} if verdict == "cannot-be-tried" else answer["values"])

    def _start(self, folder: Path) -> "subprocess.Popen[bytes]":
        jobs = [self._job(fact) for fact in self._facts]
        (folder / "jobs.json").write_text(json.dumps(jobs), "utf-8")
        with (folder / "errors.txt").open("wb") as errors:
            return subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "bitproof.facts.process", str(folder)],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": _package_path(), "TMPDIR": str(folder), MARKER: self._marker},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # a terminal's Ctrl-C is for the process that prints
            )

    def _job(self, fact: Fact) -> dict[str, Any]:
        other = str(self._other_python) if fact.other_python and self._other_python else None
        patience = _OTHER_PATIENCE if other else self._patience
        return {"id": fact.id, "program": fact.program, "other_python": other, "patience": patience}

    def _next(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = last_lines(Path(self._folder.name) / "errors.txt")
            why = said[-1] if said else f"it ended with status {self._process.wait()}"
            msg = f"the facts cannot be tried: {sys.executable} could not run them: {why}"
            raise LaunchError(msg)
        return dict(json.loads(line))


def _package_path() -> str:
    """Return a PYTHONPATH by which the child finds the package that runs here."""
    here = str(Path(__file__).parents[2])
    return os.pathsep.join(dict.fromkeys([here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))


def check_other_python(facts: Sequence[Fact], path: Path | None) -> None:
    """Refuse an interpreter that cannot be used, before anything is run.

    Raises:
        UsageError: it is for none of the facts, cannot be started, or has no torch.
    """
    if path is None:
        return
    where = f"--other-python {path}"
    if not any(fact.other_python for fact in facts):
        msg = f"{where}: none of the chosen facts compares two interpreters. Add D3, or leave the option out."
        raise UsageError(msg)
    program = "from importlib.util import find_spec; print(find_spec('torch') is not None)"
    try:
        done = subprocess.run(
            [path, "-c", program], capture_output=True, text=True, check=False, timeout=_CHECK_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or error
        msg = f"{where}: expected a Python interpreter, but it could not be run: {why}. Give the path of one, such as venv/bin/python."
        raise UsageError(msg) from error
    if done.stdout.strip() not in {"True", "False"}:
        msg = f"{where}: expected a Python interpreter, but it did not answer as one. Give the path of one, such as venv/bin/python."
        raise UsageError(msg)
    if done.stdout.strip() == "False":
        msg = f"{where}: that interpreter has no torch. Install one into it: {path} -m pip install torch"
        raise UsageError(msg)
