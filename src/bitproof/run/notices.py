"""What a run says: warnings in the user's own code, and lines on standard error."""

import sys
import warnings
from pathlib import Path

from bitproof.compare.verdict import Verdict

_PACKAGE = str(Path(__file__).parent)


class ForgottenWarning(UserWarning):
    """Something stateful touches a part of the run and is not one itself."""


class SaveFailedWarning(UserWarning):
    """A checkpoint could not be saved; training goes on, and the earlier ones are untouched."""


class ResumeDiffersWarning(UserWarning):
    """Steps that were taken again after a crash came out otherwise than before it, or will, or a part was not restored."""


def say(message: str) -> None:
    """Print a line on standard error."""
    print(f"bitproof: {message}", file=sys.stderr, flush=True)  # noqa: T201


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that called the run."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001  # the documented way to a frame
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def steps(first: int, last: int) -> str:
    """Say a range of steps."""
    return f"step {first}" if first == last else f"steps {first}–{last}"


def explanation(run: str, step: int, redone: str, verdict: Verdict) -> str:
    """Say what a resume that was not exact got wrong, and what to do.

    Args:
        run: what is judged.
        step: at which it was resumed.
        redone: the steps that were taken again, in words.
        verdict: of them.
    """
    lines = [f"{run}: resumed at {step}; {redone} redone: NOT identical, the resume was not exact"]
    found = verdict.divergence
    if found is not None:
        names = f" ({', '.join(found.names)})" if found.names else ""
        lines.append(f"  first difference: {found.facet} of step {found.step}{names}")
    for cause in verdict.causes:
        lines.append(f"  {cause.code} ({cause.confidence}): {cause.summary}")
        lines += [f"    {evidence}" for evidence in cause.evidence]
        lines.append(f"    What to do: {cause.remedy}")
    return "\n".join(lines)
