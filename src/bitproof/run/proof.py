"""Every crash is a proof: the steps that a resumed leg takes again are compared with those from before the crash."""

import os
import time
from pathlib import Path
from typing import Literal

import msgspec

from bitproof.compare.redone import judge_redone
from bitproof.compare.timeline import Placed
from bitproof.compare.verdict import Verdict
from bitproof.errors import TrailCorruptError, TrailError
from bitproof.run.notices import steps
from bitproof.store.atomic import TEMPORARY, write_atomic
from bitproof.store.system import System
from bitproof.trail.reader import next_leg, read_trail


class LegRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of a leg, as JSON: where it began, and what the steps that it redid have shown.

    Args:
        format: version of these fields.
        leg: its number, from 1, as in the trail.
        began: UTC time.
        pid: of its process.
        sequence: of the checkpoint that it resumed from; None for a fresh start.
        step: optimizer steps of the run before it.
        micro: backward passes of an open accumulation window before it.
        interrupted_at: the last step that an earlier leg is known to have taken.
        verdict: of the redone steps; None if there are none, or not all have been taken yet.
        problem: why they could not be judged.
    """

    format: Literal[1] = 1
    leg: int
    began: str
    pid: int
    sequence: int | None = None
    step: int = 0
    micro: int = 0
    interrupted_at: int = 0
    verdict: Verdict | None = None
    problem: str | None = None

    def __str__(self) -> str:
        """Say it in words."""
        start = f"leg {self.leg}: began {self.began} at step {self.step}"
        if self.problem is not None:
            return f"{start}; redone steps could not be compared: {self.problem}"
        if self.verdict is None:
            return start
        redone = steps(self.step + 1, self.step + self.verdict.steps.compared)
        return f"{start}; {redone} redone: {self.verdict.verdict}"


class Legs:
    """The legs of a run: their trail, and what is kept beside it.

    Args:
        folder: the run's.
    """

    def __init__(self, folder: Path) -> None:
        self.trail = folder / "trail"
        self._folder = folder / "legs"
        self._folder.mkdir(exist_ok=True)
        self.number = max(next_leg(self.trail), max((r.leg for r in self.records()), default=0) + 1)
        self.current: LegRecord | None = None

    @staticmethod
    def begun(folder: Path) -> bool:
        """Tell whether a leg has begun in a folder before; its record need not be readable."""
        return any((folder / "legs").glob("*.json"))

    @staticmethod
    def stored(folder: Path) -> list[LegRecord]:
        """Read what is kept of the legs of a run, in order.

        Raises:
            TrailCorruptError: a file is damaged.
        """
        return [_read(path) for path in sorted((folder / "legs").glob("*.json"))]

    def records(self) -> list[LegRecord]:
        """Read what is kept of all legs, in order; see :meth:`stored`."""
        return self.stored(self._folder.parent)

    def begin(self, *, sequence: int | None, step: int, micro: int) -> None:
        """Note where this leg begins."""
        try:
            reached = max((placed.last for placed in self._earlier()), default=0)
            problem = None
        except TrailError as error:
            reached, problem = 0, str(error)
        self.current = LegRecord(
            leg=self.number,
            began=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            pid=os.getpid(),
            sequence=sequence,
            step=step,
            micro=micro,
            interrupted_at=reached,
            problem=problem,
        )
        self._write()

    def waits_for(self, step: int) -> bool:
        """Tell whether the redone steps have been taken, and not been judged yet."""
        now = self.current
        if now is None or now.verdict is not None or now.problem is not None:
            return False
        return now.step < now.interrupted_at <= step

    def judge(self) -> Verdict | None:
        """Judge the redone steps so far, and keep the verdict."""
        now = self.current
        if now is None or now.verdict is not None or now.problem is not None or now.interrupted_at <= now.step:
            return None
        try:
            own = [leg for leg in read_trail(self.trail, lazily=True).legs if leg.number == self.number]
            verdict = judge_redone(self._earlier(), Placed(own[0], now.step, now.micro)) if own else None
        except TrailError as error:
            self.current = msgspec.structs.replace(now, problem=str(error))
        else:
            if verdict is None:
                return None
            self.current = msgspec.structs.replace(now, verdict=verdict)
        self._write()
        return self.current.verdict

    def _earlier(self) -> list[Placed]:
        records = {record.leg: record for record in self.records()}
        if not records or not self.trail.is_dir() or next_leg(self.trail) == 1:
            return []
        return [
            Placed(leg, records[leg.number].step, records[leg.number].micro)
            for leg in read_trail(self.trail, lazily=True).legs
            if leg.number in records and leg.number != self.number and leg.steps
        ]

    def _write(self) -> None:
        assert self.current is not None
        path = self._folder / f"{self.number:03d}.json"
        data = msgspec.json.format(msgspec.json.encode(self.current), indent=2)
        notes: list[str] = []  # a file system without fsync: the store has said so
        write_atomic(
            System(), path.with_name(f"{TEMPORARY}leg"), lambda _: [memoryview(data)], lambda: path, notes.append
        )


def _read(path: Path) -> LegRecord:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LegRecord)
    except msgspec.MsgspecError as error:
        raise TrailCorruptError(
            f"{path} is damaged: {error}. Remove it: the checkpoints do not need it, and its leg is then left out of proofs."
        ) from error
