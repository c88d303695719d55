"""The second control: repeat the reference before a resume is blamed for a divergence."""

import threading
from collections.abc import Callable

import msgspec

from bitproof.compare.judge import control_agrees
from bitproof.compare.verdict import Verdict
from bitproof.prove.legs import Proof, fresh_output, read_leg, run_leg
from bitproof.prove.orders import Orders
from bitproof.trail.reader import Trail


class Control:
    """Repeats the reference once, when the first trial needs it; all trials share it.

    Args:
        proof: it.
        reference: what to repeat.
        whole: repeat all of it, since further trials may part later than the first.
    """

    def __init__(self, proof: Proof, reference: Trail, *, whole: bool) -> None:
        self._proof = proof.part("control")
        self._reference = reference
        self._whole = whole
        self._lock = threading.Lock()
        self._ran = False
        self._trail: Trail | None = None

    def confirm(self, verdict: Verdict, again: Callable[[], Verdict]) -> Verdict:
        """Return the verdict as it is once the reference was repeated.

        Args:
            verdict: a divergence.
            again: judges it anew, knowing that the reference is reproducible up to there.
        """
        divergence = verdict.divergence
        if verdict.verdict != "diverged" or divergence is None or not self._proof.options.control:
            return verdict
        with self._lock:
            if not self._ran:
                self._ran = True
                self._trail = self._run(None if divergence.facet == "end" or self._whole else divergence.step)
        if self._trail is None:
            return verdict
        differs = control_agrees(self._reference, self._trail, divergence.step)
        if differs is None:
            return again()
        return msgspec.structs.replace(differs, verdict="not-reproducible", seams=verdict.seams)

    def _run(self, upto: int | None) -> Trail | None:
        proof, limit = self._proof, self._proof.options.steps
        fresh_output(proof)
        last = limit if upto is None else min(upto, limit or upto)
        place = proof.folder / "control"
        finished = run_leg(proof, "control", place, proof.options.command, 1, Orders(stop_after=last))
        trail = read_leg(place, 1)
        if finished.ending in {"ended", "stopped"} and trail is not None:
            return trail
        proof.watcher.note("the control leg did not end well, so no cause is called certain")
        return None
