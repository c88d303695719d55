"""Bad input: one clear message, the right exit status, no traceback, nothing on standard output."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kit.proofs import TRAIN, bitproof

PYTHON = sys.executable
PROVE = [PYTHON, str(TRAIN), "--out", "{out}"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "no-such-program", "{out}"], "'no-such-program' was not found on PATH or as a file"),
        (["--", PYTHON, "train.py"], "Put {out} in its place"),
        (["--kill", "soon", "--", *PROVE], "--kill soon: expected a step (13)"),
        (["--steps", "1", "--", *PROVE], "--steps 1: expected at least 2"),
        (["--signal", "FOO", "--", *PROVE], "--signal FOO: there is no such signal"),
        (["--resume-args", "--a 'b", "--", *PROVE], "No closing quotation"),
        (["--resume-command", "none-such x", "--", *PROVE], "'none-such' was not found"),
        (["--work", "file/below", "--", *PROVE], "--work file/below: cannot write there"),
        (["--html", "missing/page.html", "--", *PROVE], "--html missing/page.html: there is no folder"),
        (["--html", ".", "--", *PROVE], "--html .: expected a file, found a folder"),
        (["--output", "file", "--", PYTHON, "train.py"], "--output file: expected a folder, found a file"),
        (["--output", ".", "--", PYTHON, "train.py"], "--output .: the current folder"),
        (["--reference", "none.trail", "--", *PROVE], "no trail at none.trail: there is nothing there"),
        (
            ["--reference", "REFERENCE", "--kill", "11", "--", *PROVE],
            "the reference takes 10 steps; choose one of 1 to 10",
        ),
        (["--reference", "REFERENCE", "--kill", "5.4", "--", *PROVE], "--kill 5.4: step 5 has 1 backward pass"),
        (["--reference", "REFERENCE", "--crashes", "10", "--", *PROVE], "--crashes 10: expected 1 to 9"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_prove(words: list[str], said: str, tmp_path: Path, reference: Path) -> None:
    """What cannot be proved is refused at once, with what was expected and what was found."""
    (tmp_path / "file").write_text("x")
    answer = bitproof("prove", *[str(reference) if word == "REFERENCE" else word for word in words], cwd=tmp_path)
    assert answer.status == 2, answer
    assert said in answer.err
    assert len(answer.err.splitlines()) <= 2  # one message, after where things lie
    assert answer.out == ""


@pytest.mark.parametrize(
    ("code", "verdict", "reason", "said"),
    [
        (
            "print('reading'); raise SystemExit('no such data set: digits')",
            "could-not-judge",
            "reference-failed",
            "digits",
        ),
        ("print('hello')", "could-not-judge", "no-steps", "no process below the command imported torch"),
        ("import torch; print('evaluated')", "could-not-judge", "no-steps", "took no optimizer step"),
        ("import time; time.sleep(60)", "could-not-judge", "timed-out", "Give it longer with --timeout"),
        ("import os; os.kill(os.getpid(), 11)", "could-not-judge", "reference-failed", "SIGSEGV"),
    ],
    ids=["crashes", "no torch", "no step", "never ends", "killed"],
)
def test_command_that_cannot_be_judged(code: str, verdict: str, reason: str, said: str, tmp_path: Path) -> None:
    """A command that crashes, does not train or never ends: could not judge, status 3, and why."""
    limit = ["--timeout", "1"] if reason == "timed-out" else []
    answer = bitproof("prove", "--json", *limit, "--", PYTHON, "-c", code, "{out}", cwd=tmp_path)
    assert answer.status == 3
    found = json.loads(answer.out)
    assert (found["verdict"], found["reason"]) == (verdict, reason)
    assert said in found["message"] + " ".join(found["output"])


def test_crash_shows_its_last_lines(tmp_path: Path) -> None:
    """The last lines of a command that crashed are shown under the verdict."""
    code = "print('reading'); raise SystemExit('no such data set: digits')"
    answer = bitproof("prove", "--", PYTHON, "-c", code, "{out}", cwd=tmp_path)
    assert answer.status == 3
    assert "COULD NOT JUDGE: the reference failed" in answer.out
    assert "│ no such data set: digits" in answer.out


@pytest.fixture
def broken(reference: Path, tmp_path: Path) -> dict[str, Path]:
    """Trails that are damaged, each in another way."""
    made = {}
    for name in ("corrupt", "empty", "newer", "algorithm", "cut", "text"):
        made[name] = tmp_path / f"{name}.trail"
        shutil.copytree(reference, made[name])
    leg = {name: next(folder.glob("*.leg")) for name, folder in made.items()}
    leg["empty"].write_bytes(b"")
    leg["text"].write_text("this is no trail\n" * 100)
    leg["cut"].write_bytes(leg["cut"].read_bytes()[: leg["cut"].stat().st_size // 2])
    data = bytearray(leg["corrupt"].read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = os.urandom(4096)
    leg["corrupt"].write_bytes(data)
    with sqlite3.connect(leg["newer"]) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    from bitproof.trail.file import seal

    with sqlite3.connect(leg["algorithm"]) as connection:
        connection.execute(
            "UPDATE meta SET value = ? WHERE key = 'algorithms'",
            (seal("meta", "algorithms", b'{"cpu":"crc32","other":"x"}'),),
        )
    connection.close()
    made["nothing"] = tmp_path / "nothing.trail"
    made["folder"] = tmp_path / "folder"
    made["folder"].mkdir()
    made["file"] = tmp_path / "file.trail"
    made["file"].write_text("x")
    return made


def test_diff(broken: dict[str, Path], reference: Path, tmp_path: Path) -> None:
    """A trail that cannot be read is refused with its path and what is wrong with it, on either side."""
    for name, said in {
        "corrupt": "is damaged",
        "empty": "is damaged",
        "cut": "is damaged",
        "text": "is damaged",
        "newer": "99",
        "algorithm": "of another algorithm",
        "nothing": "there is nothing there",
        "folder": "holds no .leg file",
        "file": "a trail is a folder, and this is a file",
    }.items():
        answer = bitproof("diff", reference, broken[name], cwd=tmp_path)
        assert answer.status == 2, (name, answer)
        assert said in answer.err, (name, answer.err)
        assert str(broken[name]) in answer.err
        assert len(answer.err.splitlines()) == 1
        assert answer.out == ""


def test_diff_into_a_missing_folder(reference: Path, tmp_path: Path) -> None:
    """A page that could not be written is refused before anything is compared."""
    answer = bitproof("diff", "--html", "missing/page.html", reference, reference, cwd=tmp_path)
    assert answer.status == 2
    assert "there is no folder" in answer.err


def test_causes_unknown(tmp_path: Path) -> None:
    """A cause code that does not exist is refused, and the way to the list is shown."""
    answer = bitproof("causes", "no-such-code", cwd=tmp_path)
    assert answer.status == 2
    assert "there is no cause code 'no-such-code'" in answer.err


def test_record(tmp_path: Path) -> None:
    """A command that cannot be recorded is refused, and a folder that is no trail is never replaced."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for words, status, said in (
        (["-o", "a.trail", "--", "no-such-program"], 2, "was not found on PATH"),
        (["-o", "mine", "--force", "--", PYTHON, "-c", ""], 2, "is not a trail, and only a trail is replaced"),
        (["-o", "mine", "--", PYTHON, "-c", ""], 2, "mine exists"),
        (["-o", "b.trail", "--", PYTHON, "-c", "print(1)"], 3, "no process below the command imported torch"),
        (["-o", "c.trail", "--", PYTHON, "-c", "raise SystemExit(7)"], 7, "nothing recorded"),
        (["-o", "mine/thesis.txt/x", "--", PYTHON, "-c", ""], 2, "cannot write"),
    ):
        answer = bitproof("record", *words, cwd=tmp_path)
        assert answer.status == status, (words, answer)
        assert said in answer.err
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"


def test_closed_output(reference: Path, tmp_path: Path) -> None:
    """A reader that goes away, or streams that are closed, change neither the status nor end in a traceback."""
    words = [PYTHON, "-m", "bitproof", "diff", str(reference), str(reference)]
    for line in (
        '"$@" | true; exit ${PIPESTATUS[0]}',
        '"$@" >&-',
        '"$@" >&- 2>&-',
        '"$@" <&- | head -c 3',
        '"$@" --json | head -c 3',
    ):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {line}", "-", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, (line, done)
        assert "Traceback" not in done.stderr, (line, done.stderr)
        assert "Broken" not in done.stderr
