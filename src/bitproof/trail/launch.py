"""Start a command so that every Python below it records."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bitproof.determinism import Choice, apply
from bitproof.errors import LaunchError
from bitproof.trail.reader import notes
from bitproof.trail.settings import Settings

INJECT = Path(__file__).parent / "inject"
VARIABLE = "BITPROOF_AGENT"


def child_environment(
    trail: Path,
    *,
    leg: int = 1,
    every: int = 100,
    agent: str = "bitproof.trail.launch:attach_recorder",
    extra: Mapping[str, Any] | None = None,
    deterministic: Choice | None = None,
) -> dict[str, str]:
    """Return the environment in which a command records.

    Args:
        trail: folder for the trail.
        leg: number of the leg.
        every: beyond the latest 1,000 steps, details are kept for each ``every``-th step.
        agent: ``module:function`` that is given the settings in each process that imports torch.
        extra: further settings for the agent, as JSON values.
        deterministic: what to set in each process: variables from its start, the rest when torch is imported.
    """
    settings = {"agent": agent, "trail": str(trail.resolve()), "leg": leg, "every": every, **(extra or {})}
    variables = {}
    if deterministic is not None:
        settings["deterministic"] = asdict(deterministic)
        variables = deterministic.variables(os.environ)
    path = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        **variables,
        "PYTHONPATH": f"{INJECT}{os.pathsep}{path}" if path else str(INJECT),
        VARIABLE: json.dumps(settings),
    }


def attach_recorder(settings: Mapping[str, Any]) -> None:
    """Attach the recorder in a process that has just imported torch."""
    from bitproof.trail.attach import attach_for_life  # noqa: PLC0415  # imports torch, and the launcher must not

    attach_for_life(Settings(Path(settings["trail"]), settings["leg"], settings["every"]))
    make_deterministic(settings)


def make_deterministic(settings: Mapping[str, Any]) -> None:
    """Set in a process that has just imported torch what :func:`child_environment` was told to, if anything.

    After the recorder is attached, so that the trail has the seeds.
    """
    if settings.get("deterministic") is not None:
        apply(Choice(**settings["deterministic"]))


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that cannot be started.

    Raises:
        LaunchError: its program was not found.
    """
    if shutil.which(command[0]) is None:
        msg = (
            f"cannot start the command: {command[0]!r} was not found on PATH or as a file. "
            "Write the command after `--` as you would type it in a shell, for example: -- python train.py"
        )
        raise LaunchError(msg)


def what_failed(trail: Path, leg: int) -> str | None:
    """Say why bitproof could not get into a process of a leg, or None if nothing failed."""
    problems = (str(note["problem"]) for note in notes(trail) if note.get("leg") == leg and "problem" in note)
    return next(problems, None)


def why_nothing(trail: Path, command: Sequence[str], leg: int = 1) -> str:
    """Explain why a command left no steps behind."""
    problem = what_failed(trail, leg)
    if problem is not None:
        return problem
    said = [note for note in notes(trail) if note.get("leg") == leg]
    unseen = [str(event[3]["what"]) for note in said for event in note.get("events", []) if event[2] == "not-observed"]
    if unseen:
        return (
            f"the command took no step that can be seen; not observed: {unseen[0]}. Leave torch.compile off the "
            "optimizer while recording (the model itself may be compiled)."
        )
    if any(note.get("torch") for note in said):
        return (
            "the command imported torch and took no optimizer step. Give it a command that trains at least one step "
            "with a torch.optim optimizer."
        )
    ignored = _isolating_options(command)
    if ignored:
        return (
            f"Python's option {ignored[0]} makes it ignore PYTHONPATH or sitecustomize, through which bitproof gets in. "
            "Leave it out, or use `with bitproof.recording(...)` in the script."
        )
    return (
        "no process below the command imported torch. Check that the command trains, and that it does not clear "
        "PYTHONPATH; inside a script, `with bitproof.recording(...)` works without it."
    )


def _isolating_options(command: Sequence[str]) -> list[str]:
    """Return the options of a Python command that keep ``PYTHONPATH`` or ``sitecustomize`` out."""
    if not Path(command[0]).name.startswith(("python", "pypy")):
        return []
    found = []
    for option in command[1:]:
        if not option.startswith("-") or option.startswith("--") or option in {"-", "-c", "-m"}:
            break
        if set(option[1:]) & set("IES"):
            found.append(option)
    return found
