"""One trial: crash the command, as often as the fault says, resume it, and judge what came back."""

import os
import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bitproof.compare.causes.made import made
from bitproof.compare.judge import compare_resume
from bitproof.compare.timeline import Timeline
from bitproof.compare.verdict import Divergence, Moment, Seam, Steps, Trails, Verdict
from bitproof.prove import plan
from bitproof.prove.control import Control
from bitproof.prove.legs import Proof, StopError, drop_output, fresh_output, read_events, read_leg, run_leg, stop
from bitproof.prove.orders import STEPS_AFTER_SIGNAL, Orders, Touched, read_touched
from bitproof.prove.process import Finished
from bitproof.prove.torn import Torn, blame
from bitproof.trail.launch import what_failed
from bitproof.trail.reader import Trail


@dataclass
class _Leg:
    """A leg that was cut off."""

    number: int
    killed: Moment
    trail: Trail | None
    """None if it was cut off before its first step was complete."""
    written: list[Touched]
    """All files that it wrote, the torn one among them."""
    whole: list[Touched]
    """Those that it finished writing."""


@dataclass
class Trial:
    """One fault, carried out.

    Args:
        proof: it.
        reference: its reference.
        line: the reference's rank 0 on the clock of the run.
        control: the second control.
        fault: what happens.
        place: folder for the legs.
        name: said before each leg's name.
    """

    proof: Proof
    reference: Trail
    line: Timeline
    control: Control
    fault: plan.Fault
    place: Path
    name: str
    legs: list[_Leg] = field(default_factory=list)
    torn: str | None = None

    def run(self) -> Verdict:
        """Crash, resume and judge."""
        fresh_output(self.proof)
        try:
            for number in range(1, (len(self.fault.kills) or 1) + 1):
                self._crash(number)
            verdict = self._resume(len(self.legs) + 1)
        except StopError as error:
            verdict = error.verdict
        if verdict.verdict == "identical":
            drop_output(self.place)
        return msgspec.structs.replace(verdict, fault=str(self.fault))

    # --- the legs that are cut off ---------------------------------------------------------------------------------

    def _crash(self, number: int) -> None:
        command = self._command()
        said = f"{self.name}crash {number} ({_said(self.fault, number)})"
        finished = run_leg(self.proof, said, self.place, command, number, self._orders())
        reached = finished.reached
        if reached is None:
            raise self._not_reached(finished, number)
        trail = read_leg(self.place, number)
        killed = Moment(reached.step, reached.micro)
        if self.proof.options.signal_number != signal.SIGKILL and trail is not None and reached.path is None:
            # After a signal the leg went on: what counts is where it ended.
            steps = max(len(leg.steps) for leg in trail.of_rank(reached.rank) or trail.legs)
            if reached.offset + steps > killed.step:
                killed = Moment(reached.offset + steps)
            self._check_signalled(finished, reached.step, killed.step)
        self.torn = reached.path
        written = [t for t in read_touched(self.place / f"control-{number}") if t.writer is not None]
        torn = None if reached.path is None or self.fault.write is None else self.fault.write - 1
        whole = [touched for i, touched in enumerate(written) if i != torn]
        self.legs.append(_Leg(number, killed, trail, written, whole))

    def _orders(self) -> Orders:
        orders = self._resuming() if self.legs else Orders()
        if self.fault.write is not None:
            return msgspec.structs.replace(orders, write=self.fault.write)
        kill = self.fault.kills[len(self.legs)]
        head = self.line.head(kill.step)
        return msgspec.structs.replace(
            orders,
            step=kill.step,
            micro=kill.micro,
            updates=head.updates if head is not None else 1,
            rank=kill.step % self.line.legs[0].leg.world_size,
        )

    def _resuming(self) -> Orders:
        """Return orders by which a resumed leg finds out at which step of the run it starts."""
        latest = self.legs[-1].trail
        saved = [e.step for leg in latest.legs for e in leg.events if e.kind == "file-saved"] if latest else []
        killed = self.legs[-1].killed.step
        return Orders(
            states=str(self.proof.folder / "states.json"),
            not_after=killed,
            checkpoint=min(saved[-1], killed) if saved else 0,
            watch_reads=self.torn is not None,
        )

    def _command(self) -> Sequence[str]:
        """Return the command of the next leg: the resume arguments only once there is something to resume from."""
        options = self.proof.options
        if not (self._checkpoints() or (self.torn is not None and self._stays(self.torn))):
            return options.command
        return options.resume_command or [*options.command, *options.resume_args]

    def _checkpoints(self) -> set[str]:
        """Return the whole files that earlier legs wrote and that may be checkpoints."""
        saved = set()
        for leg in self.legs:
            events = [e for x in leg.trail.legs for e in x.events] if leg.trail is not None else []
            saved |= {str(e.data.get("path")) for e in events if e.kind == "file-saved"}
        # A whole file of the torn one's name was written before it: a temporary name that is used again and again.
        known = saved - {self.torn}
        known |= {t.path for leg in self.legs for t in leg.whole if t.writer in {"torch.save", "safetensors"}}
        if not any(t.writer in {"torch.save", "safetensors"} for t in self.proof.written):
            # A script that saves by other means. What it writes before its first step is settings and logs.
            known |= {t.path for leg in self.legs for t in leg.whole if t.writer == "open" and t.step > 0}
        return known

    def _stays(self, torn: str) -> bool:
        """Tell whether the reference's file of the same name was still there at its end: then it is no temporary name."""
        return os.path.relpath(torn, self.proof.output_of(self.place)) in self.proof.left

    def _not_reached(self, finished: Finished, number: int) -> StopError:
        trails = Trails(reference=str(self.reference.path), interrupted=[str(self.place / f"leg-{number}.trail")])
        if finished.ending == "timed-out":
            return stop("timed-out", _timed_out("the leg to be cut off", self.proof), finished, trails)
        if finished.ending == "failed":
            if number > 1:
                message = f"the leg after crash {number - 1} failed by itself, with {finished.how}"
                base = Verdict(verdict="resume-failed", message=message, output=finished.lines, trails=trails)
                return StopError(msgspec.structs.replace(base, seams=[Seam(x.killed, None, 0) for x in self.legs]))
            message = f"the leg to be cut off failed by itself, with {finished.how}; the reference had not"
            return stop("interrupted-failed", message, finished, trails)
        trail = read_leg(self.place, number)
        steps = max((len(x.steps) for x in trail.legs), default=0) if trail is not None else 0
        message = (
            f"the crash was due {_said(self.fault, number)}, and the leg ended before it, after {steps} steps of its own. "
            f"The reference took {self.line.last} steps. Choose another moment with --kill, or look into {self.place}."
        )
        return stop("fault-not-reached", message, finished, trails)

    def _check_signalled(self, finished: Finished, sent: int, ended: int) -> None:
        name = signal.Signals(self.proof.options.signal_number).name
        if finished.survived:
            went_on = f"went on for {ended - sent} steps" if ended > sent else "did not end"
            limit = f"{STEPS_AFTER_SIGNAL} steps or {self.proof.options.grace:g} s"
            self.proof.watcher.note(f"after {name} the leg {went_on}; it is given {limit}, and was killed then")
        elif ended > sent and ended >= self.line.last:
            message = (
                f"the leg was sent {name} after step {sent} and trained on to its end, step {ended}, so nothing was cut "
                "off. Choose an earlier step with --kill, or let the script end when it gets that signal."
            )
            trails = Trails(reference=str(self.reference.path))
            raise stop("fault-not-reached", message, finished, trails)

    # --- the resumed leg -------------------------------------------------------------------------------------------

    def _resume(self, number: int) -> Verdict:
        orders = msgspec.structs.replace(self._resuming(), stop_after=self.proof.options.steps)
        finished = run_leg(self.proof, f"{self.name}resume", self.place, self._command(), number, orders)
        trail = read_leg(self.place, number)
        seen = [leg.trail for leg in self.legs if leg.trail is not None]
        trails = Trails(
            reference=str(self.reference.path),
            interrupted=[str(t.path) for t in seen],
            resumed=[str(self.place / f"leg-{number}.trail")],
        )
        causes = []
        if self.torn is not None:
            read = [t for t in read_touched(self.place / f"control-{number}") if t.writer is None]
            causes = blame(self._torn(self.torn), read_events(self.place, number, trail), read)
        base = Verdict(verdict="resume-failed", steps=Steps(self.line.last, 0, 0), trails=trails, output=finished.lines)
        killed = self.legs[-1].killed
        if finished.ending == "timed-out":
            message = _timed_out("the resumed leg", self.proof)
            return msgspec.structs.replace(base, verdict="could-not-judge", reason="timed-out", message=message)
        if finished.ending == "failed":
            message = f"the resumed leg failed with {finished.how}"
            if not causes:
                remedy = "Read its last lines below, and run it by hand: " + shlex.join(self._command())
                summary = "the resumed leg failed by itself"
                causes = [made("unknown", "possible", summary, ["its last lines are given"], None, remedy)]
            return msgspec.structs.replace(base, message=message, causes=causes, seams=[Seam(killed, None, 0)])
        if trail is None:
            failed = what_failed(self.place / f"leg-{number}.trail", number)
            if failed is not None:
                return msgspec.structs.replace(base, verdict="could-not-judge", reason="no-steps", message=failed)
            return _took_no_step(base, self.line, killed)
        kills = [leg.killed for leg in self.legs if leg.trail is not None]
        verdict = compare_resume(self.reference, [*seen, trail], kills)
        again = lambda: compare_resume(self.reference, [*seen, trail], kills, controlled=True)  # noqa: E731
        verdict = self.control.confirm(verdict, again)
        if causes and verdict.verdict not in {"identical", "could-not-judge"}:
            verdict = msgspec.structs.replace(verdict, causes=[*causes, *verdict.causes])
        return msgspec.structs.replace(verdict, trails=trails, seams=self._seams(verdict.seams))

    def _torn(self, path: str) -> Torn:
        """Return the half-written file with what was written beside it since the last step."""
        written = self.legs[-1].written
        last = written[-1].step if written else 0
        beside = frozenset(t.path for t in written if t.step == last)
        return Torn(path, self.proof.output_of(self.place), beside)

    def _seams(self, seams: list[Seam]) -> list[Seam]:
        """Put in the seams of legs that were cut off before their first step, and so left no trail."""
        known, found, at = iter(seams), [], Moment(0)
        for leg in self.legs:
            seam = next(known, None) if leg.trail is not None else Seam(leg.killed, at, 0)
            if seam is not None:
                found.append(seam)
                at = seam.resumed_at or at
        return found


def _took_no_step(base: Verdict, line: Timeline, killed: Moment) -> Verdict:
    """Judge a resumed leg that ended well without a step: right only if nothing was left to do."""
    if killed.step >= line.last and not killed.micro:
        seams = [Seam(killed, killed, 0)]
        return msgspec.structs.replace(base, verdict="identical", seams=seams, output=[])
    divergence = Divergence(
        step=killed.step + 1, rank=0, facet="end", names=["the resumed leg took no step"], differing=1, of=1
    )
    evidence = [f"the reference ends at step {line.last}, and the resumed leg took no step"]
    cause = made("stopped-early", "certain", "the resumed leg ended without a step", evidence, None)
    seams = [Seam(killed, None, 0)]
    return msgspec.structs.replace(base, verdict="diverged", divergence=divergence, causes=[cause], seams=seams)


def _said(fault: plan.Fault, leg: int) -> str:
    if fault.write is not None:
        return f"while file {fault.write} is written"
    kill = fault.kills[leg - 1]
    return f"in step {kill.step} after backward pass {kill.micro}" if kill.micro else f"after step {kill.step}"


def _timed_out(leg: str, proof: Proof) -> str:
    limit = f"{proof.patience:g} s" if proof.patience is not None else "its time"
    return f"{leg} did not end within {limit}, and was ended. Give it longer with --timeout SECONDS, or fewer --steps."
