"""What a run has logged, read back: every step once, through any number of crashes."""

import json
import math
from pathlib import Path

import pytest
from run_training import Crash, parts, train
from typer.testing import CliRunner

from bitproof.cli.main import app
from bitproof.errors import RunError
from bitproof.run import Every, Logged, Run, read_log


def test_redone_steps_are_there_once(tmp_path: Path) -> None:
    """A run that crashed between checkpoints has the history of one that never did."""
    train(tmp_path / "never")
    whole = read_log(tmp_path / "never")
    assert len(whole) == 12
    assert whole[0] == Logged(0, 0, "loss", whole[0].value)
    with pytest.raises(Crash):
        train(tmp_path / "crashed", crash_at=10, save_every=Every(steps=3))
    assert read_log(tmp_path / "crashed") == whole[:10]
    run, _ = train(tmp_path / "crashed", save_every=Every(steps=3))
    assert run.history == whole


def test_a_run_that_has_not_begun_has_the_history_up_to_its_checkpoint(tmp_path: Path) -> None:
    """What will be taken again is not told twice: it is left out until it is."""
    with pytest.raises(Crash):
        train(tmp_path, crash_at=10, save_every=Every(steps=3))
    with Run(tmp_path, **parts()) as run:
        assert {one.step for one in run.history} == {0, 1, 2, 3}
        run.restore()
        run.log(loss=0.5)
        assert run.history[-1] == Logged(3, 0, "loss", 0.5)


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    """Numbers, texts, truth, and numbers that are not finite, for which JSON has no word."""
    with Run(tmp_path, save_every=None, **parts()) as run:
        run.restore()
        run.log(loss=math.inf, rate=1e-3, count=3, note="warm", ok=True)
        run.log(loss=math.nan)
        found = run.history
    assert [(one.name, one.value) for one in found[:-1]] == [
        ("loss", math.inf),
        ("rate", 1e-3),
        ("count", 3),
        ("note", "warm"),
        ("ok", True),
    ]
    assert math.isnan(float(found[-1].value))


def test_a_line_that_a_crash_cut_is_left_out_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    """The last line may be half there; any other is an error with its number and what to do."""
    path = tmp_path / "log.jsonl"
    good = b'{"step": 1, "epoch": 0, "loss": 0.5}\n'
    path.write_bytes(good + good[:-9])
    assert read_log(tmp_path) == [Logged(1, 0, "loss", 0.5)]
    for bad in (
        b'{"step": 1}\n',
        b'{"step": "1", "epoch": 0}\n',
        b"[1]\n",
        b"\xff\n",
        b'{"step": 1, "epoch": 0, "a": [1]}\n',
    ):
        path.write_bytes(good + bad + good)
        with pytest.raises(RunError, match=r"log.jsonl, line 2: expected step, epoch and values.*Remove the line"):
            read_log(tmp_path)
    assert read_log(tmp_path / "nowhere") == []


def test_the_command_prints_it(tmp_path: Path) -> None:
    """One line a step and epoch for people, one row a value as JSON, of one step on request."""
    with Run(tmp_path, save_every=None, **parts()) as run:
        run.restore()
        empty = CliRunner().invoke(app, ["show", str(tmp_path), "--history"])
        run.log(loss=0.5, note="warm")
        run.step = 7
        run.log(loss=math.nan)
    assert empty.output == "nothing was logged\n"
    said = CliRunner().invoke(app, ["show", str(tmp_path), "--history"])
    assert said.output == "step 0         epoch 0     loss=0.5  note=warm\nstep 7         epoch 0     loss=nan\n"
    printed = CliRunner().invoke(app, ["show", str(tmp_path), "--history", "--step", "7", "--json"])
    assert json.loads(printed.output) == {
        "format": 1,
        "history": [{"step": 7, "epoch": 0, "name": "loss", "value": "nan"}],
    }
