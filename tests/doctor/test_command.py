"""``bitproof doctor`` as a user runs it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bitproof.doctor.catalogue import CODES
from kit.clinic import PLANTED, RIGHT, line_of
from kit.proofs import ROOT, SCRIPTS, bitproof, processes_of, wait_until

EXAMPLES = ROOT / "examples"
PYTHON = sys.executable


class Hazard(msgspec.Struct, forbid_unknown_fields=True):
    """A hazard, as promised."""

    code: str
    where: str | None
    summary: str
    remedy: str
    fact: str | None


class Missing(msgspec.Struct, forbid_unknown_fields=True):
    """A hazard that was not looked for, as promised."""

    code: str
    why: str


class Said(msgspec.Struct, forbid_unknown_fields=True):
    """The answer in JSON, as promised."""

    format: int
    environment: dict[str, Any]
    hazards: list[Hazard]
    steps: int | None
    not_looked_for: list[Missing]
    reason: str | None
    message: str | None


def parsed(text: str) -> Said:
    """Read an answer strictly."""
    return msgspec.json.decode(text, type=Said)


def test_this_environment(tmp_path: Path) -> None:
    """Without a command the environment is looked at: what bits depend on, and nothing is written."""
    answer = bitproof("doctor", "--json", cwd=tmp_path)
    assert answer.status == 0, answer
    said = parsed(answer.out)
    assert (said.format, said.hazards, said.steps, said.reason) == (1, [], None, None)
    assert said.environment["torch.version"]
    assert list(tmp_path.iterdir()) == []


def test_a_planted_script(tmp_path: Path) -> None:
    """A hazard is named with its line and its remedy; the status is 1, in a pipe there is no colour, nothing stays behind."""
    (tmp_path / "train.py").write_text(PLANTED)
    answer = bitproof("doctor", "--steps", 8, "-q", "--", PYTHON, "train.py", cwd=tmp_path)
    assert answer.status == 1, answer
    assert answer.out.startswith("! 1 HAZARD in 8 steps\n")
    assert f"! scheduler-not-saved ({line_of(PLANTED)}): " in answer.out
    assert "What to do: Save scheduler.state_dict()" in answer.out
    assert "see: bitproof facts C2" in answer.out
    assert "Not looked for: ranks-share-stream (the command runs on one rank); " in answer.out
    assert "\x1b" not in answer.out
    assert processes_of(tmp_path) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == [".bitproof", "last.pt", "train.py"]


def test_a_right_script(tmp_path: Path) -> None:
    """Without a hazard the status is 0; the answer in JSON says what was not looked for, and a fixed folder is put back."""
    (tmp_path / "train.py").write_text(RIGHT.replace('"last', '"runs/last'))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "last.pt").write_text("mine")
    answer = bitproof("doctor", "--json", "--output", "runs", "--", PYTHON, "train.py", cwd=tmp_path)
    assert answer.status == 0, answer
    said = parsed(answer.out)
    assert (said.hazards, said.steps, said.reason) == ([], 12, None)
    missing = {entry.code for entry in said.not_looked_for}
    assert {"ranks-share-stream", "cudnn-rnn-dropout"} <= missing <= {code.code for code in CODES}
    assert "checkpoint-in-place" not in missing
    assert (tmp_path / "runs" / "last.pt").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "no-such-program"], "'no-such-program' was not found on PATH or as a file"),
        (["--steps", "1", "--", PYTHON, "x.py"], "--steps"),
        (["--output", "."], "--output is for a command, and there is none"),
        (["--output", ".", "--", PYTHON, "x.py"], "--output .: the current folder"),
        (["--work", "file/below", "--", PYTHON, "x.py"], "--work file/below: cannot write there"),
        (["--list", "--", PYTHON, "x.py"], "--list runs nothing"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_bad_input(words: list[str], said: str, tmp_path: Path) -> None:
    """What cannot be examined is refused at once: status 2, one message, nothing on standard output."""
    (tmp_path / "file").write_text("x")
    answer = bitproof("doctor", *words, cwd=tmp_path)
    assert answer.status == 2, answer
    assert said in answer.err
    assert answer.out == ""


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        ("print('hello')", "no-steps", "no process below the command imported torch"),
        ("raise SystemExit('no such data')", "failed", "failed by itself before its first step, with exit status 1"),
        ("import time; time.sleep(60)", "timed-out", "--timeout"),
    ],
)
def test_a_command_that_cannot_be_examined(code: str, reason: str, said: str, tmp_path: Path) -> None:
    """A command that does not train, fails or never ends: status 3, and why."""
    limit = ["--timeout", "1"] if reason == "timed-out" else []
    answer = bitproof("doctor", "--json", *limit, "--", PYTHON, "-c", code, cwd=tmp_path)
    assert answer.status == 3, answer
    found = parsed(answer.out)
    assert (found.reason, found.hazards, found.steps) == (reason, [], 0)
    assert found.message is not None
    assert said in found.message


def test_a_command_that_fails_on_its_way(tmp_path: Path) -> None:
    """What was seen until a command failed is still said, with its last lines; the status is 3."""
    (tmp_path / "train.py").write_text(
        PLANTED.replace("    validate()\n", "    raise SystemExit('the disk is full')\n")
    )
    answer = bitproof("doctor", "-q", "--", PYTHON, "train.py", cwd=tmp_path)
    assert answer.status == 3, answer
    assert "failed by itself after step 4, with exit status 1" in answer.out
    assert "scheduler-not-saved" in answer.out
    assert "│ the disk is full" in answer.out


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C ends the command that is examined too."""
    (tmp_path / "train.py").write_text("import pathlib, time\npathlib.Path('started').touch()\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [PYTHON, "-m", "bitproof", "doctor", "--", PYTHON, "train.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until((tmp_path / "started").exists)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    deadline = time.monotonic() + 10
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_of(tmp_path) == []


def test_the_list(tmp_path: Path) -> None:
    """Every code is listed, as text and as JSON, without torch being imported."""
    answer = bitproof("doctor", "--list", cwd=tmp_path)
    assert answer.status == 0
    assert all(code.code in answer.out for code in CODES)
    listed = msgspec.json.decode(bitproof("doctor", "--list", "--json", cwd=tmp_path).out)
    assert [code["code"] for code in listed["codes"]] == [code.code for code in CODES]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("digits.py", "--steps", "30"),
        ("char_model.py", "--steps", "30"),
        ("run_digits.py", "--epochs", "4", "--limit", "400"),
        ("hf_trainer.py",),
        ("hf_trainer.py", "--augment"),
        ("lightning_digits.py",),
    ],
    ids=" ".join,
)
def test_examples_have_no_hazard(words: tuple[str, ...], tmp_path: Path) -> None:
    """The examples, the trainers among them, have no hazard."""
    answer = bitproof(
        "doctor", "--json", "--steps", 60, "--", PYTHON, EXAMPLES / words[0], "--out", "{out}", *words[1:], cwd=tmp_path
    )
    assert answer.status == 0, answer
    assert parsed(answer.out).hazards == []


@pytest.mark.slow
def test_a_trainer_that_seeds_after_the_model(tmp_path: Path) -> None:
    """The Trainer seeds when it is made; a model that was built before that is found, at the user's two lines."""
    text = (EXAMPLES / "hf_trainer.py").read_text("utf-8")
    lines = [line for line in text.splitlines() if "torch.manual_seed(options.seed)" not in line]
    assert len(lines) == len(text.splitlines()) - 1
    (tmp_path / "train.py").write_text("\n".join(lines))
    answer = bitproof("doctor", "--json", "--", PYTHON, "train.py", "--out", "{out}", cwd=tmp_path)
    (hazard,) = parsed(answer.out).hazards
    made = next(i for i, line in enumerate(lines, 1) if "trainer = Trainer(" in line)
    assert (hazard.code, hazard.where) == ("seeded-after-model", f"train.py:{made}")


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_ranks(own: bool, tmp_path: Path) -> None:
    """Two ranks under torchrun that seed alike draw the same batches, which is found; with a seed each there is no hazard."""
    text = (SCRIPTS / "ranks.py").read_text("utf-8")
    if not own:
        assert text.count("torch.manual_seed(100 + rank)") == 1
        text = text.replace("torch.manual_seed(100 + rank)", "torch.manual_seed(100)")
    (tmp_path / "train.py").write_text(text)
    command = [
        PYTHON,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "train.py",
        "--out",
        "{out}",
    ]
    answer = bitproof("doctor", "--json", "--", *command, cwd=tmp_path)
    said = parsed(answer.out)
    seeded = next(i for i, line in enumerate(text.splitlines(), 1) if "torch.manual_seed(100" in line)
    expected = [] if own else [("ranks-share-stream", f"train.py:{seeded}")]
    assert [(hazard.code, hazard.where) for hazard in said.hazards] == expected
