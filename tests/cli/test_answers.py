"""What the commands print where: the answer on standard output, progress on standard error, JSON alone with --json."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bitproof.cli.main import app
from bitproof.cli.output import size_text
from kit.proofs import TRAIN, bitproof

PROVE = ["--kill", "5", "--resume-args=--resume", "--", sys.executable, str(TRAIN), "--out", "{out}"]
TYPES: dict[str, Any] = {
    "format": int,
    "verdict": str,
    "reason": (str, type(None)),
    "steps": {"reference": int, "compared": int, "identical": int},
    "seams": [{"killed_after": {"step": int, "micro": int}, "resumed_at": {"step": int, "micro": int}, "redone": int}],
    "divergence": {"step": int, "rank": int, "facet": str, "names": [str], "differing": int, "of": int},
    "causes": [
        {"code": str, "confidence": str, "summary": str, "evidence": [str], "remedy": str, "where": (str, type(None))}
    ],
    "latent": [{"code": str, "summary": str}],
    "environment": [{"key": str, "reference": object, "other": object}],
    "trails": {"reference": str, "interrupted": [str], "resumed": [str]},
    "trials": list,
}
"""The documented answer, field by field."""


def assert_fits(found: Any, wanted: Any, where: str = "") -> None:
    """Check that every documented field is there with its type; others may be added."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict), where
        for key, inner in wanted.items():
            assert key in found, f"{where}.{key}"
            assert_fits(found[key], inner, f"{where}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(found, list), where
        for item in found:
            assert_fits(item, wanted[0], f"{where}[]")
    else:
        assert isinstance(found, wanted), f"{where}: {found!r}"


def test_diverged(reference: Path, tmp_path: Path) -> None:
    """A finding is JSON alone on standard output with every documented field, a page, progress elsewhere, and status 1."""
    words = ["--no-control", "--json", "--html", "page.html", "--reference", reference, *PROVE]
    words[words.index("--resume-args=--resume")] = "--resume-args=--resume --forget momentum"
    answer = bitproof("prove", *words, cwd=tmp_path)
    assert answer.status == 1
    found = json.loads(answer.out)
    assert_fits(found, TYPES)
    assert found["verdict"] == "diverged"
    assert (found["divergence"]["step"], found["divergence"]["facet"]) == (4, "optimizer")
    assert [c["code"] for c in found["causes"]] == ["optimizer-not-restored"]
    assert "<html" in (tmp_path / "page.html").read_text()
    lines = answer.err.splitlines()
    assert lines[0].startswith("trails, logs and {out} folders: ")
    assert [line.partition(" after ")[0] for line in lines[1:3]] == ["crash 1 (after step 5): cut off", "resume: ended"]
    # What --json names exists, and so does all that a person may want to look into.
    for path in [found["trails"]["reference"], *found["trails"]["interrupted"], *found["trails"]["resumed"]]:
        assert Path(path).is_dir()
    (log,) = tmp_path.glob(".bitproof/*/trial-1/leg-2.log")
    assert "resuming from" in log.read_text()
    assert (tmp_path / ".bitproof" / ".gitignore").read_text() == "*\n"


def test_identical(reference: Path, tmp_path: Path) -> None:
    """A run that came back is said in a few lines, plain in a pipe, with status 0 and no checkpoint left over."""
    answer = bitproof("prove", "--quiet", "--reference", reference, *PROVE, cwd=tmp_path)
    assert answer.status == 0
    assert answer.err == ""
    assert answer.out.startswith(
        "✓ IDENTICAL\n  10 steps of the reference; killed after step 5, resumed at step 3 (2 redone)"
    )
    assert "\x1b" not in answer.out
    assert not list(tmp_path.glob(".bitproof/*/*/out"))


def test_terminal(tmp_path: Path) -> None:
    """On a terminal the line of a running leg is redrawn, and gives way to how the leg ended."""
    master, terminal = pty.openpty()
    command = [sys.executable, "-c", "import time; time.sleep(1)", "{out}"]
    words = [sys.executable, "-m", "bitproof", "prove", "--", *command]
    with subprocess.Popen(words, cwd=tmp_path, stderr=terminal, stdout=subprocess.PIPE) as process:
        os.close(terminal)
        seen = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            seen += part
        os.close(master)
        assert process.wait() == 3
    assert seen.count(b"\r\x1b[Kreference: 0 steps, ") > 2
    assert b"reference: ended after " in seen.replace(b"\x1b[2m", b"")


def test_silence() -> None:
    """A leg that prints nothing for long is said to: on a terminal as it goes, elsewhere once."""
    import io
    import time

    from rich.console import Console

    from bitproof.cli import progress

    written = io.StringIO()
    line = progress.ProgressLine()
    line._console, line._live = Console(file=written, width=100), False
    log = Path(__file__)
    assert time.time() - log.stat().st_mtime > 0
    leg = line.begin("reference", log, 12)
    before = progress._QUIET
    progress._QUIET = 0.0
    try:
        leg.tick(99.0, 7)
        leg.tick(99.5, 8)
    finally:
        progress._QUIET = before
    assert written.getvalue().startswith("reference: 7 of 12 steps, 99 s, printed nothing for ")
    assert len(written.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("doctor", "[-- COMMAND…]"), ("facts", "[ID]…"), ("causes", "[CODE]…"), ("prove", "-- COMMAND…"), ("ls", "RUN")],
)
def test_usage_line(command: str, arguments: str) -> None:
    """A usage line names its arguments as its examples do, with one pair of brackets for what may be left out."""
    said = CliRunner().invoke(app, [command, "--help"])
    assert said.output.splitlines()[0] == f"Usage: bitproof {command} [OPTIONS] {arguments}"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (99, "99 B"), (100, "0.1 kB"), (24_100, "24.1 kB"), (100_000, "0.1 MB"), (1_500_000, "1.5 MB")],
)
def test_small_sizes_are_not_zero(size: int, text: str) -> None:
    """A size is written in MB, and in kB or B where that would be 0.0."""
    assert size_text(size) == text


def test_help_is_quick_and_complete(tmp_path: Path) -> None:
    """Each command's help has examples, and importing the command line brings in neither torch nor numpy."""
    for command in ("prove", "record", "diff", "causes"):
        answer = bitproof(command, "--help", cwd=tmp_path)
        assert answer.status == 0
        assert f"bitproof {command} " in answer.out
    code = "import sys, bitproof.cli; print({'torch', 'numpy', 'rich.table', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
