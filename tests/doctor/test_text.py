"""What the doctor says, as text."""

from io import StringIO
from typing import Any

from rich.console import Console

from bitproof.doctor.catalogue import CODES, hazard
from bitproof.doctor.examine import Examination, NotLookedFor
from bitproof.report.examination import render, render_list

ENVIRONMENT = {
    "torch.version": "2.13.0",
    "torch.threads": 2,
    "torch.cpu_capability": "AVX2",
    "torch.deterministic": False,
}
FOUND = Examination(
    ENVIRONMENT,
    [
        hazard("scheduler-not-saved", "the scheduler made here is in no checkpoint", "a\x1b[31mb/train.py:12"),
        hazard("not-seeded", "x"),
    ],
    20,
    [NotLookedFor("ranks-share-stream", "the command runs on one rank")],
)


def shown(found: Examination, **how: Any) -> str:
    """Return the text of an examination."""
    console = Console(file=StringIO(), width=100, **how)
    render(found, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_in_a_pipe() -> None:
    """Hazards, remedies, facts, what was not looked for, and the environment: without colour, names from outside made harmless."""
    text = shown(FOUND)
    assert text.startswith("! 2 HAZARDS in 20 steps\n")
    assert "  ! scheduler-not-saved (a\\x1b[31mb/train.py:12): the scheduler made here is in no checkpoint\n" in text
    assert "    What to do: Save scheduler.state_dict()" in text
    assert "    see: bitproof facts C2\n" in text
    assert "  ! not-seeded: x\n" in text
    assert "Not looked for: ranks-share-stream (the command runs on one rank)" in text
    assert "torch.threads" in text
    assert "not fixed by OMP_NUM_THREADS" in text
    assert "\x1b" not in text


def test_on_a_terminal() -> None:
    """On a terminal there is colour, and no line is longer than it is wide, a table's apart."""
    text = shown(FOUND, force_terminal=True, color_system="standard", no_color=False)
    assert "\x1b[" in text
    plain = shown(FOUND, force_terminal=True, color_system=None)
    assert all(len(line) <= 100 for line in plain.splitlines() if "torch." not in line and "env." not in line)


def test_in_another_encoding() -> None:
    """Where the encoding has no such characters, plain ones stand for them."""
    import io

    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, "ascii"), width=100)
    render(Examination(ENVIRONMENT, [], 20), console)
    console.file.flush()
    assert raw.getvalue().startswith(b"OK NO HAZARD in 20 steps\n")


def test_what_could_not_be_examined() -> None:
    """The reason stands first, then what was found until then, then the command's last words."""
    failed = Examination(
        ENVIRONMENT, FOUND.hazards[1:], 4, (), "failed", "it failed after step 4", ["the disk is full"]
    )
    text = shown(failed)
    assert text.startswith("? COULD NOT EXAMINE to the end: the command failed\n  it failed after step 4\n")
    assert text.index("! not-seeded") < text.index("│ the disk is full")
    assert (failed.exit_status, FOUND.exit_status, Examination({}, []).exit_status) == (3, 1, 0)


def test_the_list() -> None:
    """Each code is listed with its meaning, its evidence, its remedy and its fact."""
    console = Console(file=StringIO(), width=100)
    render_list(CODES, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith("not-seeded\n  means: ")
    assert text.count("\n  remedy: ") == len(CODES)
    assert "  shown by: bitproof facts D10\n" in text
