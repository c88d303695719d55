"""``bitproof price``: how steps are counted and timed, what is worked out, and what is said."""

import json
import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from bitproof.price.agent import Clock
from bitproof.price.answer import Failure, Price, Speed, Timing, Window, costliest, speed
from bitproof.report.price import render
from kit.proofs import bitproof, processes_of, wait_until

PYTHON = sys.executable
TRAINS = """
import pathlib, sys, time, torch
out, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
assert not any(out.iterdir()), "not a fresh folder"
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
slow = torch.are_deterministic_algorithms_enabled()
for step in range(steps):
    time.sleep(0.03 if slow else 0.01)
    optimizer.zero_grad()
    model(torch.rand(4, 8)).square().mean().backward()
    optimizer.step()
    torch.save(model.state_dict(), out / "last.pt")
    if "put" in sys.argv and step == 2:
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
"""
SLOW = {"algorithms", "memory-filling", "deterministic", "deterministic-warn"}
"""Settings under which that script sleeps three times as long."""


def run(folder: Path, *options: object, steps: int = 100, words: tuple[str, ...] = ()) -> dict[str, Any]:
    """Price the script above, which must succeed, and return the answer."""
    (folder / "train.py").write_text(TRAINS)
    command = [PYTHON, "train.py", "{out}", steps, *words]
    answer = bitproof("price", "--json", *options, "--", *command, cwd=folder)
    assert answer.status == 0, answer
    found: dict[str, Any] = json.loads(answer.out)
    return found


def assert_clean(folder: Path) -> None:
    """Check that nothing but logs is left, and no process."""
    assert not processes_of(folder)
    (work,) = (folder / ".bitproof").glob("price-*")
    assert not list(work.glob("*/*/out"))
    assert list(work.glob("*/*/log"))


def test_an_operation_that_cannot(tmp_path: Path) -> None:
    """Where determinism makes the script fail, the operation and its line are named, and the rest is measured."""
    found = run(tmp_path, "--rounds", 1, "--steps", 10, "--warm-up", 3, "--whole", words=("put",))
    assert (found["format"], found["steps"], found["warm_up"], found["rounds"]) == (1, 10, 3, 1)
    assert found["reason"] is None
    assert found["machine"]["threads"] >= 1
    assert 20 < found["without"][0] < 100  # each step sleeps 10 ms
    whole, warning = found["settings"]
    assert (whole["name"], whole["ratio"], whole["steps_per_second"]) == ("deterministic", None, [])
    assert whole["failure"]["operation"] == "put_"
    line = next(i for i, text in enumerate(TRAINS.splitlines(), 1) if "put_" in text)
    assert whole["failure"]["where"] == f"{tmp_path / 'train.py'}:{line}"
    assert (warning["name"], warning["failure"]) == ("deterministic-warn", None)
    assert 0.2 < warning["ratio"] < 0.8  # it sleeps three times as long
    assert_clean(tmp_path)


@pytest.mark.slow
def test_each_setting_in_turn(tmp_path: Path) -> None:
    """All settings and each alone are measured in turn; the one that slows this script is found to cost most."""
    found = run(tmp_path, "--rounds", 2, "--steps", 20)
    assert len(found["without"]) == 2
    names = [s["name"] for s in found["settings"]]
    assert names == ["deterministic", "algorithms", "onednn", "memory-filling"]
    for setting in found["settings"]:
        assert len(setting["steps_per_second"]) == len(setting["ratios"]) == 2
        assert setting["failure"] is None
        assert (setting["ratio"] < 0.8) is (setting["name"] in SLOW)
    assert found["costliest"] == "algorithms"
    assert_clean(tmp_path)


def test_a_command_without_enough_steps(tmp_path: Path) -> None:
    """A command that ends during its warm-up has no price, and the answer says how many steps it took."""
    (tmp_path / "train.py").write_text(TRAINS)
    answer = bitproof("price", "--json", "--", PYTHON, "train.py", "{out}", 4, cwd=tmp_path)
    assert answer.status == 3
    found = json.loads(answer.out)
    assert found["reason"] == "no-steps"
    assert "the command took 4 steps, and 5 warm it up" in found["message"]
    assert found["settings"] == []


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        ("print('hello')", "no-steps", "no process below the command imported torch"),
        ("raise SystemExit('no such data set: digits')", "command-failed", "no such data set: digits"),
        ("import time; time.sleep(60)", "timed-out", "Give it longer with --timeout"),
    ],
    ids=["no torch", "fails", "never ends"],
)
def test_a_command_that_has_no_price(code: str, reason: str, said: str, tmp_path: Path) -> None:
    """A command that fails, does not train or never ends: status 3, and why, on a terminal and as JSON."""
    limit = ["--timeout", "1"] if reason == "timed-out" else []
    answer = bitproof("price", *limit, "--", PYTHON, "-c", code, cwd=tmp_path)
    assert answer.status == 3
    assert answer.out.startswith("no price: ")
    assert said in answer.out
    answer = bitproof("price", "--json", *limit, "--", PYTHON, "-c", code, cwd=tmp_path)
    assert answer.status == 3
    assert json.loads(answer.out)["reason"] == reason
    assert not processes_of(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "no-such-program"], "'no-such-program' was not found on PATH or as a file"),
        (["--steps", "1", "--", PYTHON], "--steps"),
        (["--rounds", "0", "--", PYTHON], "--rounds"),
        (["--output", ".", "--", PYTHON], "--output .: the current folder"),
        (["--work", "file/below", "--", PYTHON], "--work file/below: cannot write there"),
        ([], "COMMAND"),
    ],
)
def test_bad_input(words: list[str], said: str, tmp_path: Path) -> None:
    """What cannot be measured is refused at once, with status 2 and nothing on standard output."""
    (tmp_path / "file").write_text("x")
    answer = bitproof("price", *words, cwd=tmp_path)
    assert answer.status == 2, answer
    assert said in answer.err
    assert answer.out == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C ends the measurement with one message; no process is left, and the output folder is what it was."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").write_text("mine")
    code = (
        "import pathlib, subprocess, sys, time; pathlib.Path('runs/mine').write_text('changed'); "
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); "
        "pathlib.Path('runs/started').touch(); time.sleep(600)"
    )
    words = [PYTHON, "-m", "bitproof", "price", "--output", "runs", "--", PYTHON, "-c", code]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until((tmp_path / "runs" / "started").exists)
    assert processes_of(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert not processes_of(tmp_path)
    assert process.returncode == 128 + number
    assert out == ""
    assert f"interrupted by {number.name}; no process was left behind" in err
    assert "Traceback" not in err
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["mine"]
    assert (tmp_path / "runs" / "mine").read_text() == "mine"


# --- counting ------------------------------------------------------------------------------------------------------


def clocked(events: str, folder: Path, *, warm_up: int = 1) -> Timing:
    """Tell a clock of backward passes (b) and updates (u), and return what it wrote at the end."""
    clock = Clock(folder, Window(warm_up=warm_up, steps=1000))
    for event in events:
        time.sleep(0.001)
        if event == "b":
            clock.work()
        else:
            clock.updated()
    clock.write()
    (path,) = folder.glob("timed-*.json")
    return msgspec.json.decode(path.read_bytes(), type=Timing)


@pytest.mark.parametrize(
    ("events", "taken"),
    [
        ("bu" * 5, 5),
        ("bbbu" * 5, 5),  # accumulated gradients
        ("buu" * 5, 5),  # two optimizers after one backward pass
        ("bubu" * 5, 10),  # two optimizers in turn
        ("bbu" * 5 + "b", 5),  # ended inside a step
        ("bbbub" * 5, 5),  # a closure that is called several times
    ],
)
def test_steps_are_counted_as_in_a_trail(events: str, taken: int, tmp_path: Path) -> None:
    """Updates with no backward pass between them are one step, however many backward passes it has."""
    timing = clocked(events, tmp_path)
    assert timing.taken == taken
    whole = taken - 1 if events.endswith("u") else taken  # a step is over when the next one begins
    assert timing.steps == whole - 1


def test_only_the_window_is_timed(tmp_path: Path) -> None:
    """The time before the first step that counts is left out."""
    clock = Clock(tmp_path, Window(warm_up=2, steps=1000))
    for pause in (0.2, 0.2, 0.01, 0.01, 0.01):
        clock.work()
        time.sleep(pause)
        clock.updated()
    clock.work()
    clock.write()
    (path,) = tmp_path.glob("timed-*.json")
    timing = msgspec.json.decode(path.read_bytes(), type=Timing)
    assert timing.steps == 3
    assert 0.03 <= timing.seconds < 0.2


# --- what is worked out and said -----------------------------------------------------------------------------------


def timings(*per_second: float, first: int = 1) -> dict[int, Timing]:
    """Timings of ten steps, by round."""
    return {
        number: Timing(taken=15, steps=10, seconds=10 / rate, rank=0, threads=1, device=None, torch="2")
        for number, rate in enumerate(per_second, first)
    }


def priced(*settings: Speed, **more: Any) -> Price:
    """A price of three rounds."""
    machine: dict[str, str | int | None] = {"cpu": "a processor", "device": None, "threads": 2, "torch": "2.13.0"}
    base = Price(command=["python"], steps=10, warm_up=5, rounds=3, machine=machine, without=[10.0, 20.0, 40.0])
    return msgspec.structs.replace(base, settings=list(settings), costliest=costliest(list(settings)), **more)


def said(price: Price) -> str:
    """Return what is printed."""
    console = Console(file=StringIO(), width=200)
    render(price, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def made(name: str, *per_second: float, part: bool = True, first: int = 1) -> Speed:
    """A setting beside 10, 20 and 40 steps a second without."""
    return speed(name, "a setting", part=part, timings=timings(*per_second, first=first), without=timings(10, 20, 40))


def test_ratios_are_of_the_same_round() -> None:
    """Each round's figure is compared with the same round's, also for a setting that came in later; the median counts."""
    found = made("algorithms", 9, 14, 32)
    assert [round(ratio, 6) for ratio in found.ratios] == [0.9, 0.7, 0.8]
    assert found.ratio == pytest.approx(0.8)
    late = made("deterministic-warn", 10, 10, first=2)
    assert [round(ratio, 6) for ratio in late.ratios] == [0.5, 0.25]
    assert made("none").ratio is None


def test_the_costliest_was_slower_in_every_round() -> None:
    """What costs most is a part of the whole that was slower in every round; noise is not blamed."""
    slow, slower, noise = made("a", 9, 18, 36), made("b", 8, 16, 32), made("c", 1, 2, 40)
    other = made("d", 1, 2, 4, part=False)
    assert costliest([slow, slower, noise, other]) == "b"
    assert costliest([noise, other]) is None


def test_what_is_said() -> None:
    """The answer is one line; below it stand every figure, its spread, what costs most, and what was measured."""
    text = said(priced(made("deterministic", 9, 14, 32, part=False), made("algorithms", 9.5, 19, 36), seconds=0.5))
    lines = text.splitlines()
    assert lines[0] == "deterministic costs 20.0%: 0.800 of the speed without (0.700 to 0.900 in 3 rounds)"
    assert "10.0 to 40.0 a second" in text
    assert "costs most: algorithms" in text
    assert "10 steps a leg, after 5 that warm up; a processor, 2 threads, PyTorch 2.13.0" in text
    assert "--steps N gives a steadier figure" in text
    assert text.isascii()


def test_noise_is_said() -> None:
    """Where determinism was faster in a round, that no cost shows is said instead of a gain."""
    text = said(priced(made("deterministic", 11, 18, 40, part=False), made("algorithms", 9, 21, 36), seconds=60.0))
    assert text.splitlines()[0] == "no cost shows: 1.000 of the speed without (0.900 to 1.100 in 3 rounds)"
    assert "no single setting was slower in every round" in text
    assert "steadier" not in text
    once = said(priced(made("deterministic", 9, part=False), rounds=1, without=[10.0]))
    assert once.startswith("deterministic: 0.900 of the speed without (one round, so no spread)")


def test_a_failure_is_said() -> None:
    """An operation that cannot is named with its line; another failure with its last line."""
    failed = [
        Speed(name="deterministic", does="", part=False, failure=Failure("put_ does not", "put_", "train.py:3")),
        Speed(name="cudnn", does="", part=True, failure=Failure("the command failed with exit status 1: \x1b[31mno")),
    ]
    text = said(priced(*failed))
    assert text.startswith("the command does not run deterministically")
    assert "deterministic does not run: put_ has no deterministic implementation at train.py:3" in text
    assert "cudnn does not run: the command failed with exit status 1: " in text
    assert "\x1b" not in text


def test_environment_of_the_command(tmp_path: Path) -> None:
    """The command as it is gets no variable that it would not have."""
    code = (
        "import os, sys; sys.exit(f\"{os.environ.get('PYTHONHASHSEED')} {os.environ.get('CUBLAS_WORKSPACE_CONFIG')}\")"
    )
    unset = {"PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    answer = bitproof("price", "--", PYTHON, "-c", code, cwd=tmp_path, env=environment)
    assert answer.status == 3
    assert "None None" in answer.out
