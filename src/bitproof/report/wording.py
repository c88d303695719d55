"""What a verdict says in words: the sentences that the terminal and the page share."""

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.ansi import AnsiDecoder

from bitproof.compare.verdict import WORST_FIRST, Divergence, Moment, Seam, Verdict

if TYPE_CHECKING:  # it imports torch, and a verdict is printed without
    from bitproof.run.checkpoints import CheckpointDifference, TensorDifference

_TENSORS_SHOWN = 20
_HEADLINES = {
    "identical": "IDENTICAL",
    "diverged": "DIVERGED",
    "not-reproducible": "NOT REPRODUCIBLE",
    "not-resumed": "NOT RESUMED",
    "resume-failed": "RESUME FAILED",
    "could-not-judge": "COULD NOT JUDGE",
}
_REASONS = {
    "reference-failed": "the reference failed",
    "interrupted-failed": "the interrupted leg failed",
    "fault-not-reached": "the fault was not reached",
    "timed-out": "a leg timed out",
    "no-steps": "no optimizer step was seen",
    "incomparable": "the two runs cannot be compared",
}
_FAILED_LEGS = {"reference-failed": "the reference", "interrupted-failed": "the interrupted leg"}
_NAMES_SHOWN = 3
_VALUE_LENGTH = 100


def printable(text: str) -> str:
    """Show each character that a terminal or a page would act on (controls, bidirectional marks) as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def source_line(where: str) -> str:
    """Return a ``file:line``, the file as seen from the current folder if it lies below it."""
    return printable(where.removeprefix(f"{Path.cwd()}/"))


def count(number: int, noun: str) -> str:
    """Return such as ``1 step`` or ``20,000 steps``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def headline(verdict: Verdict) -> str:
    """Return the answer in one line, without its symbol."""
    name = _HEADLINES[verdict.verdict]
    if verdict.verdict == "could-not-judge":
        return f"{name}: {_REASONS[verdict.reason]}" if verdict.reason else name
    if verdict.divergence is None:
        return name
    if verdict.verdict == "diverged":
        return f"{name} at {place(verdict.divergence)}"
    if verdict.verdict == "not-reproducible":
        return f"{name}: differs at {place(verdict.divergence)}"
    return name


def place(divergence: Divergence) -> str:
    """Return such as ``step 21 in batch (input_ids)``."""
    where = moment(Moment(divergence.step, divergence.micro))
    if divergence.rank:
        where += f" on rank {divergence.rank}"
    if divergence.facet == "end":
        return f"{where}: the two runs do not end at the same step"
    names = _names(divergence)
    return f"{where} in {printable(divergence.facet)}" + (f" ({names})" if names else "")


def _names(divergence: Divergence) -> str:
    shown = [printable(name) for name in divergence.names[:_NAMES_SHOWN]]
    if not shown:
        return ""
    more = divergence.differing > len(shown) or len(divergence.names) > len(shown)
    names = ", ".join([*shown, "…"] if more else shown)
    if divergence.of <= 1:
        return names
    share = (
        f"all {divergence.of:,}"
        if divergence.differing == divergence.of
        else f"{divergence.differing:,} of {divergence.of:,}"
    )
    return f"{share}: {names}"


def moment(at: Moment) -> str:
    """Return such as ``step 13`` or ``step 13, micro-step 2``."""
    return f"step {at.step}, micro-step {at.micro}" if at.micro else f"step {at.step}"


def compares_runs(verdict: Verdict) -> bool:
    """Tell whether two independent runs were compared, and nothing was killed or resumed."""
    interrupted = verdict.trails is not None and verdict.trails.interrupted
    return not verdict.seams and not interrupted and verdict.fault is None


def other_name(verdict: Verdict) -> str:
    """Return what the side that is not the reference is called."""
    return "other" if compares_runs(verdict) else "resumed"


def leg_name(leg: str, verdict: Verdict) -> str:
    """Return what a leg is called: in a comparison of two runs, none was interrupted or resumed."""
    return "other" if leg != "reference" and compares_runs(verdict) else leg


def compared(verdict: Verdict) -> str | None:
    """Say what was compared, in one sentence; None if there was nothing to compare."""
    judged = verdict.steps.compared or verdict.verdict in {"identical", "diverged"}
    if judged and compares_runs(verdict):
        return f"{count(verdict.steps.compared, 'step')} compared{_outcome(verdict, start=0)}"
    parts = [_seam(seam, verdict) for seam in verdict.seams]
    if verdict.steps.reference:
        parts.insert(0, f"{count(verdict.steps.reference, 'step')} of the reference")
    joined = bool(verdict.seams) and verdict.seams[0].resumed_at is not None
    if verdict.steps.compared or (judged and joined):
        parts.append(_after_the_seam(verdict))
    return "; ".join(parts) or None


def _seam(seam: Seam, verdict: Verdict) -> str:
    if seam.killed_after is None:
        return "resumed from an unknown state" if seam.resumed_at is None else f"resumed at {moment(seam.resumed_at)}"
    killed = f"killed after {moment(seam.killed_after)}"
    if seam.resumed_at is None:
        if not verdict.steps.compared:
            return killed  # the resumed leg took no step: it has no first state to be looked up
        return f"{killed}, resumed in a state that the reference never had"
    redone = f"{seam.redone:,} redone" if seam.redone else "none redone"
    if seam.resumed_at == Moment(0):
        return f"{killed}, started again at step 0 ({redone})"
    at = seam.resumed_at
    where = f"inside step {at.step}, after micro-step {at.micro}" if at.micro else f"at step {at.step}"
    return f"{killed}, resumed {where} ({redone})"


def _after_the_seam(verdict: Verdict) -> str:
    steps, joined = verdict.steps, verdict.seams[0].resumed_at if verdict.seams else None
    if joined is None or verdict.verdict == "not-reproducible":
        return f"{count(steps.compared, 'step')} compared{_outcome(verdict, start=0)}"
    start = joined.step - 1 if joined.micro else joined.step
    where = "" if not start else " after the seam" if len(verdict.seams) == 1 else " after the first seam"
    possible = steps.reference - start
    if not steps.compared:
        return f"no step{where} could be compared" if possible > 0 else f"no step was left{where}"
    share = (
        f"{steps.compared:,} of {count(possible, 'step')}"
        if possible >= steps.compared
        else count(steps.compared, "step")
    )
    return f"{share}{where} compared{_outcome(verdict, start=start)}"


def _outcome(verdict: Verdict, start: int) -> str:
    steps = verdict.steps
    if steps.identical == steps.compared:
        return ": identical" if steps.compared else ""
    if not steps.identical:
        return ", none identical"
    leading = verdict.divergence is not None and verdict.divergence.step - start - 1 == steps.identical
    if leading and steps.identical == 1:
        return ", the first identical"
    return f", the first {steps.identical:,} identical" if leading else f", {steps.identical:,} of them identical"


def trials_counted(trials: Sequence[Verdict]) -> str:
    """Return such as ``4 trials: 3 identical, 1 diverged``."""
    counts = Counter(trial.verdict for trial in trials)
    total = count(len(trials), "trial")
    if len(counts) == 1:
        (only,) = counts
        return f"{total}, {'each' if len(trials) > 1 else 'which is'} {spoken(only)}"
    return f"{total}: " + ", ".join(f"{counts[name]} {spoken(name)}" for name in reversed(WORST_FIRST) if counts[name])


def spoken(name: str) -> str:
    """Return a verdict's name as said in a sentence."""
    return name.replace("-", " ")


def fault(trial: Verdict, number: int) -> str:
    """Return the trial's fault as an option of the command line, or its number where it has none."""
    if not trial.fault:
        return f"trial {number}"
    option = printable(trial.fault)
    return option if option.startswith("-") else f"--kill {option}"


def failed_leg(verdict: Verdict) -> str:
    """Return the name of the leg whose last output a verdict holds."""
    if verdict.verdict == "resume-failed":
        return "the resumed leg"
    return _FAILED_LEGS.get(verdict.reason or "", "the leg")


def output_lines(verdict: Verdict) -> list[str]:
    """Return the last output lines without the colours and cursor movements that a leg printed."""
    if not verdict.output:
        return []
    text = "\n".join(line.rstrip("\r\n") for line in verdict.output)
    return [printable(line.plain.expandtabs(4)) for line in AnsiDecoder().decode(text)]


def value(found: Any, *, whole: bool = False) -> str:
    """Return an environment's value as text, cut in the middle where it is long, unless ``whole``."""
    if found is None:
        return "not set"
    text = printable(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=str))
    if not text:
        return '""'
    if whole or len(text) <= _VALUE_LENGTH:
        return text
    half = _VALUE_LENGTH // 2
    return f"{text[:half]} … {text[-half:]}"


def trail_paths(verdict: Verdict) -> list[tuple[str, str]]:
    """List the trails as (leg, path)."""
    trails = verdict.trails
    if trails is None:
        return []
    return [
        ("reference", printable(trails.reference)),
        *(("interrupted", printable(path)) for path in trails.interrupted),
        *((other_name(verdict), printable(path)) for path in trails.resumed),
    ]


def command(verdict: Verdict) -> str:
    """Return the command as it would be typed."""
    return printable(shlex.join(verdict.command))


def checkpoint_lines(found: "CheckpointDifference", *, verbose: bool) -> list[str]:
    """Say how two checkpoints differ, a line a tensor."""
    settings = [f"  {printable(d.key)}: {_pair(d.reference, d.other)}" for d in found.environment]
    if settings:
        settings.insert(0, "saved in environments that differ:")
    steps = zip((found.first, found.second), found.steps, strict=True)
    told = [f"step {step} of {printable(name)}" for name, step in steps if step is not None]
    compared = [f"  compared: {', '.join(told)}"] if told else []
    if found.verdict == "identical":
        same = f"identical: all {found.tensors} tensors have the same names, dtypes, shapes and bytes"
        return [same, *compared, *settings]
    shown = found.differences if verbose else found.differences[:_TENSORS_SHOWN]
    lines = [f"different: {len(found.differences)} of {found.tensors} tensors", *compared]
    lines += [f"  {printable(d.name)}: {_tensor_difference(d)}" for d in shown]
    left = len(found.differences) - len(shown)
    return [*lines, *([f"  and {left} more; --verbose lists them"] if left else []), *settings]


def _pair(first: object, second: object) -> str:
    return f"{value(first)} in the first, {value(second)} in the second"


def _tensor_difference(found: "TensorDifference") -> str:
    if found.what in {"dtype", "shape"}:
        return f"{found.first} in the first, {found.second} in the second"
    if found.what != "values":
        return f"{found.what} ({found.first or found.second})"
    ulp = f", {found.ulp:,} ULP" if found.ulp is not None else ""
    apart = f", {found.apart:.6g}" if found.apart is not None else ""
    return f"{found.differing:,} of {found.of:,} elements of {found.first} differ; the farthest apart{apart}{ulp}"
