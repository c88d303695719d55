"""``bitproof record`` on real commands: how it gets in, what it passes on, what it refuses."""

import os
import signal
import sys
import sysconfig
from pathlib import Path
from typing import Any

import psutil
import pytest

from bitproof.trail.launch import why_nothing
from bitproof.trail.reader import read_trail

TRAIN = """
import os, sys, torch
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print("trained")
sys.exit(int(os.environ.get("EXIT", "0")))
"""
PYTHON = sys.executable


@pytest.fixture
def train(tmp_path: Path) -> Path:
    """A training script."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def count(trail: Path) -> list[int]:
    """Steps of each leg."""
    return [len(leg.steps) for leg in read_trail(trail).legs]


@pytest.mark.usefixtures("train")
def test_the_commands_output_and_status_are_its_own(cli: Any, tmp_path: Path) -> None:
    """What the command prints and its exit status are passed on; bitproof speaks on stderr only."""
    result = cli("record", "-o", "a.trail", "--", PYTHON, "train.py", EXIT="7")
    assert (result.status, result.out) == (7, "trained\n")
    assert result.err == "bitproof: recorded 3 steps in a.trail\n"
    assert count(tmp_path / "a.trail") == [3]
    again = cli("record", "-o", "a.trail", "--", PYTHON, "train.py")
    assert again.status == 2
    assert again.err == (
        "bitproof: a.trail exists. Add a leg to it (--append, or append=True), replace it (--force, or force=True), "
        "or choose another path.\n"
    )
    assert cli("record", "-o", "a.trail", "--append", "--", PYTHON, "-m", "train").status == 0
    assert count(tmp_path / "a.trail") == [3, 3]
    assert cli("record", "-o", "a.trail", "--force", "--", "sh", "-c", "exit 4").status == 4
    assert list((tmp_path / "a.trail").iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("train")
def test_accelerate_launch(cli: Any, tmp_path: Path) -> None:
    """A launcher that imports torch itself takes no step; the process below it is the one that is recorded."""
    launch = [PYTHON, "-m", "accelerate.commands.launch", "--num_processes", "1", "--num_machines", "1"]
    options = ["--mixed_precision", "no", "--dynamo_backend", "no", "--cpu"]
    result = cli("record", "-o", "a.trail", "--", *launch, *options, "train.py")
    assert result.status == 0, result.err
    assert count(tmp_path / "a.trail") == [3]


@pytest.mark.usefixtures("train")
def test_the_users_own_sitecustomize_runs(cli: Any, tmp_path: Path) -> None:
    """A ``sitecustomize`` of the user's runs too, and a script may clear its environment before it imports torch."""
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['OWN'] = 'ran'\n")
    (tmp_path / "train.py").write_text("import os\nprint(os.environ['OWN'])\nos.environ.clear()\n" + TRAIN)
    path = os.pathsep.join([str(own), cli.environment()["PYTHONPATH"]])
    result = cli("record", "-o", "a.trail", "--", PYTHON, "train.py", PYTHONPATH=path)
    assert (result.status, result.out) == (0, "ran\ntrained\n")
    assert count(tmp_path / "a.trail") == [3]


def test_a_python_without_bitproof_is_named(cli: Any, tmp_path: Path) -> None:
    """Where the training interpreter cannot import bitproof the command runs all the same, and the message says which."""
    packages = sysconfig.get_paths()["purelib"]
    (tmp_path / "train.py").write_text(TRAIN)
    # The same interpreter with the same packages, but without this checkout.
    shell = f'PYTHONPATH="${{PYTHONPATH%%:*}}:{packages}" exec {Path(PYTHON).resolve()} train.py'
    result = cli("record", "-o", "a.trail", "--", "sh", "-c", shell)
    assert result.out == "trained\n"
    assert result.status == 3
    assert "bitproof: nothing recorded: bitproof cannot be imported by " in result.err
    assert "Install bitproof into the interpreter that trains." in result.err


@pytest.mark.parametrize(("option", "shown"), [("-I", "-I"), ("-S", "-S"), ("-sE", "-sE")])
def test_an_isolated_python_is_named(cli: Any, option: str, shown: str) -> None:
    """Options that keep bitproof out are named."""
    result = cli("record", "-o", "a.trail", "--", PYTHON, option, "-c", "print(1)")
    assert (result.status, result.out) == (3, "1\n")
    assert f"nothing recorded: Python's option {shown} makes it ignore PYTHONPATH or sitecustomize" in result.err


def test_only_pythons_own_options_are_blamed(tmp_path: Path) -> None:
    """A script's option -S, or another program's, is not taken for Python's."""
    for command in (["python3", "train.py", "-S"], ["ls", "-S"], ["python3", "-m", "train", "-I"]):
        assert "no process below the command imported torch" in why_nothing(tmp_path, command)


def test_nothing_to_record(cli: Any, tmp_path: Path) -> None:
    """A command without torch, one without a step and one whose update is compiled each get their reason."""
    result = cli("record", "-o", "a.trail", "--", "true")
    assert result.status == 3
    assert "nothing recorded: no process below the command imported torch" in result.err
    result = cli("record", "-o", "b.trail", "--", PYTHON, "-c", "import torch; raise SystemExit(5)")
    assert result.status == 5
    assert "nothing recorded: the command imported torch and took no optimizer step" in result.err
    (tmp_path / "compiled.py").write_text(
        TRAIN.replace("    optimizer.step()", "    torch.compile(optimizer.step, backend='eager')()")
    )
    result = cli("record", "-o", "c.trail", "--", PYTHON, "compiled.py")
    assert result.status == 3
    assert "not observed: an optimizer step that torch.compile has compiled" in result.err


@pytest.mark.parametrize("signal_sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_command(cli: Any, tmp_path: Path, signal_sent: signal.Signals) -> None:
    """Ctrl-C reaches the command, which may end as it likes; a command ended by a signal gives 128 + its number."""
    (tmp_path / "wait.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    process = cli.start("record", "-o", "a.trail", "--", PYTHON, "wait.py")
    assert process.stdout.readline() == "up\n"
    (child,) = psutil.Process(process.pid).children()
    if signal_sent is signal.SIGINT:
        os.kill(process.pid, signal.SIGINT)  # the terminal sends it to both
    child.send_signal(signal_sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal_sent
    assert f"the command was ended by {signal_sent.name}" in err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["no-such-program"], "cannot start the command: 'no-such-program' was not found"),
        (["./no-format"], "cannot start the command: ./no-format"),
    ],
)
def test_a_command_that_cannot_be_started(cli: Any, tmp_path: Path, command: list[str], words: str) -> None:
    """One line says what is wrong, with status 2, and nothing is left behind."""
    script = tmp_path / "no-format"
    script.write_bytes(b"\x00\x01\x02\x03")
    script.chmod(0o755)
    result = cli("record", "-o", "a.trail", "--", *command)
    assert result.status == 2
    assert result.err.startswith(f"bitproof: {words}")
    assert "Traceback" not in result.err


@pytest.mark.parametrize("force", [[], ["--force"], ["--append"]], ids=["", "force", "append"])
def test_what_is_no_trail_is_never_replaced(cli: Any, tmp_path: Path, force: list[str]) -> None:
    """A folder with anything of the user's in it, and a file, are left alone."""
    mine = tmp_path / "mine"
    (mine / "notes").mkdir(parents=True)
    (mine / "notes" / "diary.txt").write_text("dear")
    (tmp_path / "file").write_text("mine")
    if force != ["--append"]:
        result = cli("record", *force, "-o", "mine", "--", "true")
        assert result.status == 2
        assert result.err.startswith("bitproof: mine exists")
    result = cli("record", *force, "-o", "file", "--", "true")
    assert result.status == 2
    assert result.err == "bitproof: file is a file, and a trail is a folder. Choose another path.\n"
    assert (mine / "notes" / "diary.txt").read_text() == "dear"
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.slow
def test_odd_paths(cli: Any, tmp_path: Path) -> None:
    """A path with spaces and special characters in it works for the trail, the script and the folder."""
    odd = tmp_path / "a b%20?#'"
    odd.mkdir()
    (odd / "train it.py").write_text(TRAIN)
    result = cli("record", "-o", odd / "t#?%.trail", "--", PYTHON, odd / "train it.py")
    assert result.status == 0, result.err
    assert count(odd / "t#?%.trail") == [3]
