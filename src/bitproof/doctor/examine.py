"""Examine an environment, and a command by running its first steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from bitproof import environment
from bitproof.doctor import notes, sources
from bitproof.doctor.evidence import Evidence, relative
from bitproof.doctor.hazard import Hazard
from bitproof.doctor.looked import not_looked_for
from bitproof.doctor.rules import RULES
from bitproof.errors import UsageError
from bitproof.prove import outputs
from bitproof.prove.legs import Watcher, drop_output, run_leg
from bitproof.prove.options import Options
from bitproof.prove.orders import Orders
from bitproof.prove.process import Finished
from bitproof.prove.prove import begun
from bitproof.trail.launch import check_command, why_nothing
from bitproof.trail.reader import Leg, Trail, read_trail

AGENT = "bitproof.doctor.agent:attach"
Reason = Literal["no-steps", "failed", "timed-out"]


class NotLookedFor(msgspec.Struct, frozen=True):
    """A hazard that these steps could not show, and why."""

    code: str
    why: str


@dataclass(frozen=True)
class Examination:
    """What was found.

    Args:
        environment: of the training process, or of this one.
        hazards: that were found, in the catalogue's order.
        steps: that were looked at; None if no command was run.
        not_looked_for: what these steps could not show.
        reason: why the command could not be examined, or not to its end; None if all went well.
        message: the same in a sentence.
        output: the last lines of a command that failed.
    """

    environment: dict[str, Any]
    hazards: Sequence[Hazard]
    steps: int | None = None
    not_looked_for: Sequence[NotLookedFor] = ()
    reason: Reason | None = None
    message: str | None = None
    output: Sequence[str] = field(default=(), repr=False)

    @property
    def exit_status(self) -> int:
        """0 no hazard, 1 hazards, 3 the command could not be examined."""
        return 3 if self.reason is not None else 1 if self.hazards else 0

    def to_json(self) -> bytes:
        """Return the answer for machines, format 1."""
        answer = {
            "format": 1,
            "environment": self.environment,
            "hazards": list(self.hazards),
            "steps": self.steps,
            "not_looked_for": list(self.not_looked_for),
            "reason": self.reason,
            "message": self.message,
        }
        return msgspec.json.format(msgspec.json.encode(answer), indent=2)


def examine_environment() -> Examination:
    """Look at the environment of this process."""
    import torch  # noqa: F401, PLC0415  # what concerns torch is described once it is imported

    evidence = Evidence(environment.describe())
    return Examination(dict(evidence.environment), find(evidence))


def examine_command(options: Options, watcher: Watcher) -> Examination:
    """Run a command's first steps and look at what they show.

    Args:
        options: the command, its folders, after how many steps and seconds it is ended.
        watcher: is told how it goes.

    Raises:
        UsageError: an option does not fit.
        LaunchError: the command cannot be started.
        OutputError: the output folder could not be put back.
    """
    _check(options)
    with begun(options, watcher, "doctor") as proof:
        place = proof.folder / "examined"
        finished = run_leg(proof, "examined", place, options.command, 1, Orders(stop_after=options.steps), AGENT)
        drop_output(place)
    folder = place / "leg-1.trail"
    trail = read_trail(folder) if any(folder.glob("*.leg")) else None
    legs = first_processes(trail) if trail is not None else []
    if not any(leg.steps for leg in legs):
        return _without_steps(options, finished, folder)
    evidence = gather(legs, place / "control-1")
    reason, message = _ending(options, finished, evidence.steps)
    missing = [NotLookedFor(code, why) for code, why in not_looked_for(evidence)]
    output = finished.lines if reason is not None else ()
    return Examination(dict(evidence.environment), find(evidence), evidence.steps, missing, reason, message, output)


def gather(legs: Sequence[Leg], control: Path) -> Evidence:
    """Put together what a leg's processes left behind."""
    noted = tuple(notes.read(control))
    files = sorted({file for note in noted if note.kind == "start" for file in _near(note.data)})
    return Evidence(legs[0].environment, tuple(legs), noted, sources.read(files))


def find(evidence: Evidence) -> list[Hazard]:
    """Apply every rule."""
    found = [hazard for rule in RULES for hazard in rule(evidence)]
    return [msgspec.structs.replace(hazard, where=relative(hazard.where)) for hazard in found]


def first_processes(trail: Trail) -> list[Leg]:
    """Return the first leg of each rank."""
    found: dict[int, Leg] = {}
    for leg in trail.legs:
        found.setdefault(leg.rank, leg)
    return [found[rank] for rank in sorted(found)]


def _near(start: dict[str, Any]) -> list[str]:
    """List the imported files of the user that lie beside the script or below it; others are somebody else's project."""
    main = start["main"]
    if main is None:
        return []
    # A path may lead there through .. or a link; Python imports from the folder of the file itself.
    folder = Path(main).resolve().parent
    near = {path: file for file in start["files"] if (path := Path(file).resolve()).is_relative_to(folder)}
    return list(near.values())


def _check(options: Options) -> None:
    if not options.command:
        raise UsageError(
            "there is no command to examine. Write it after --, for example: -- python train.py --out {out}"
        )
    check_command(options.command)
    if options.output is not None:
        outputs.check(options.output, options.work)


def _without_steps(options: Options, finished: Finished, folder: Path) -> Examination:
    found = environment.describe()
    if finished.ending == "timed-out":
        reason: Reason = "timed-out"
        message = f"the command took no step within {options.timeout:g} s, and was ended. Give it longer with --timeout SECONDS."
    elif finished.ending == "failed":
        reason, message = "failed", f"the command failed by itself before its first step, with {finished.how}"
    else:
        reason, message = "no-steps", why_nothing(folder, options.command)
    return Examination(found, [], 0, (), reason, message, finished.lines)


def _ending(options: Options, finished: Finished, steps: int) -> tuple[Reason | None, str | None]:
    if finished.ending == "failed":
        return "failed", f"the command failed by itself after step {steps}, with {finished.how}"
    if finished.ending == "timed-out":
        return (
            "timed-out",
            f"the command was ended after {options.timeout:g} s, at step {steps}. Give it longer with --timeout SECONDS.",
        )
    return None, None
