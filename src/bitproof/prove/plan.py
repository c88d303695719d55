"""Choose and read faults: pure functions over what the reference's trail shows."""

import re
import shlex
import signal
from dataclasses import dataclass

from bitproof.compare.timeline import Timeline
from bitproof.compare.verdict import Moment
from bitproof.errors import UsageError

_MOMENT = re.compile(r"(\d+)(?:\.(\d+))?")


@dataclass(frozen=True)
class Fault:
    """One trial's faults: where each leg but the last is cut off.

    Args:
        kills: moments of the run, rising; empty for a fault during a save.
        write: the number of the file to leave half written.
    """

    kills: tuple[Moment, ...] = ()
    write: int | None = None

    def __str__(self) -> str:
        """Write the fault as on the command line."""
        if self.write is not None:
            return f"during-save:{self.write}"
        return ",".join(f"{k.step}.{k.micro}" if k.micro else str(k.step) for k in self.kills)


@dataclass(frozen=True)
class Wanted:
    """A ``--kill`` option as given: moments, ``every``, or during saves."""

    kills: tuple[Moment, ...] = ()
    every: bool = False
    write: int | None = None
    every_write: bool = False


def parse(text: str) -> Wanted:
    """Read one ``--kill`` option.

    Raises:
        UsageError: it is none of the forms.
    """
    if text == "every":
        return Wanted(every=True)
    if text == "during-save":
        return Wanted(write=1)
    if text == "during-save:every":
        return Wanted(every_write=True)
    if text.startswith("during-save:") and text.removeprefix("during-save:").isdecimal():
        number = int(text.removeprefix("during-save:"))
        if number >= 1:
            return Wanted(write=number)
    matches = [_MOMENT.fullmatch(part.strip()) for part in text.split(",")]
    kills = tuple(Moment(int(m[1]), int(m[2] or 0)) for m in matches if m is not None)
    if len(kills) == len(matches) and all(k.step >= 1 for k in kills):
        if list(kills) != sorted(set(kills)):
            msg = f"--kill {text}: several crashes in one run must come one after another, such as 5,9"
            raise UsageError(msg)
        return Wanted(kills)
    msg = (
        f"--kill {text}: expected a step (13), a micro-step (13.2), several crashes in one run (5,9), every, "
        "during-save, during-save:N or during-save:every; steps count from 1"
    )
    raise UsageError(msg)


def split(option: str, text: str) -> list[str]:
    """Split an option's value as a shell would.

    Raises:
        UsageError: a quote is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}. Close the quote, or escape it with a backslash.") from error


def signal_number(name: str) -> int:
    """Return the number of a signal by its name, with or without SIG.

    Raises:
        UsageError: there is none of that name, or it would end nothing.
    """
    found = next((s for s in signal.Signals if s.name.removeprefix("SIG") == name.upper().removeprefix("SIG")), None)
    if found is None:
        raise UsageError(f"--signal {name}: there is no such signal; expected a name such as KILL, TERM, INT or USR1")
    if found in {signal.SIGSTOP, signal.SIGTSTP, signal.SIGCONT}:
        raise UsageError(f"--signal {name}: it stops a process instead of ending it; use KILL, TERM, INT or USR1")
    return found


def faults(reference: Timeline, wanted: list[Wanted], writes: int, crashes: int | None) -> list[Fault]:
    """Turn what was asked for into trials.

    Args:
        reference: rank 0 of the reference.
        wanted: the ``--kill`` options; none for the default fault.
        writes: how many files the reference wrote.
        crashes: spread this many crashes over one run.

    Raises:
        UsageError: a fault lies outside the reference.
    """
    found: list[Fault] = []
    for want in wanted:
        if want.every:
            found += [Fault((moment,)) for moment in moments(reference)]
        elif want.every_write:
            if writes == 0:
                raise UsageError(_no_writes(writes))
            found += [Fault(write=number) for number in range(1, writes + 1)]
        elif want.write is not None:
            if want.write > writes:
                raise UsageError(_no_writes(writes))
            found.append(Fault(write=want.write))
        else:
            _check(reference, want.kills)
            found.append(Fault(want.kills))
    if crashes is not None:
        found.append(Fault(spread(reference, crashes)))
    return found or [Fault((default(reference),))]


def moments(reference: Timeline) -> list[Moment]:
    """List every step and every micro-step inside one, in order."""
    found = []
    for step in range(1, reference.last + 1):
        head = reference.head(step)
        inside = len(head.micros) if head is not None else 0
        found += [Moment(step, micro) for micro in range(1, inside)]
        found.append(Moment(step))
    return found


def spread(reference: Timeline, crashes: int) -> tuple[Moment, ...]:
    """Spread crashes evenly over the run.

    Raises:
        UsageError: there are not enough steps.
    """
    if crashes < 1 or crashes > reference.last - 1:
        msg = f"--crashes {crashes}: expected 1 to {max(1, reference.last - 1)}, as the reference takes {reference.last} steps"
        raise UsageError(msg)
    return tuple(Moment(max(i, round(i * reference.last / (crashes + 1)))) for i in range(1, crashes + 1))


def default(reference: Timeline) -> Moment:
    """Choose a telling moment: inside an epoch, the second one if there is one, and off the save interval."""
    last = reference.last
    saves = sorted({step for step, _ in reference.events("file-saved") if 0 < step < last})
    starts = sorted({step for step, _ in reference.events("loader-started")})
    second = [s for s in starts if s > 0]

    def score(step: int) -> tuple[int, ...]:
        since_save = min((step - s for s in saves if s <= step), default=-1)
        return (
            since_save >= 1,  # off the save interval, so that steps are redone
            step < last - 1,
            not second or step > second[0],
            step not in starts and step - 1 not in starts,
            bool(saves) and _mid_epoch(step - since_save, starts),
            -abs(step - round(0.6 * last)),
        )

    return Moment(max(range(1, max(2, last)), key=score))


def _mid_epoch(step: int, starts: list[int]) -> bool:
    """Tell whether the checkpoint that will be used lies inside an epoch: there the position in the data counts."""
    return step not in starts


def _check(reference: Timeline, kills: tuple[Moment, ...]) -> None:
    for kill in kills:
        head = reference.head(kill.step) if kill.step <= reference.last else None
        if head is None:
            msg = f"--kill {kill.step}: the reference takes {reference.last} steps; choose one of 1 to {reference.last}"
            raise UsageError(msg)
        if kill.micro > len(head.micros):
            msg = f"--kill {kill.step}.{kill.micro}: step {kill.step} has {len(head.micros)} backward passes"
            raise UsageError(msg)


def _no_writes(writes: int) -> str:
    if writes == 0:
        return (
            "--kill during-save: the reference wrote no file below {out} or --output through a writer that is covered. "
            "Check that checkpoints go there, and how they are written."
        )
    return f"--kill during-save: the reference writes {writes} files; choose one of 1 to {writes}"
