"""Checkpoints on the command line: list, show, verify, go back, export, compare."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_training import parts, train
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from bitproof.cli.main import app
from bitproof.errors import CheckpointCorruptError, UsageError
from bitproof.run import Every, Run
from bitproof.run.checkpoints import compare, opened
from bitproof.run.contents import contents
from bitproof.store import Store


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a checkpoint of each of 3 steps."""
    folder: Path = tmp_path_factory.mktemp("run")
    train(folder, epochs=1, save_every=Every(steps=1), background=False, keep=None)
    return folder


def answer(*arguments: str | Path, status: int = 0) -> dict[str, Any]:
    """Run a command with --json and without, and return its answer."""
    words = [str(argument) for argument in arguments]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == status, said.output
    assert said.output.strip()
    printed = CliRunner().invoke(app, [*words, "--json"])
    assert printed.exit_code == status
    found: dict[str, Any] = json.loads(printed.stdout)
    assert found["format"] == 1
    return found


def test_list_show_and_verify(run: Path) -> None:
    """Each command says what the store holds."""
    assert [c["step"] for c in answer("ls", run)["checkpoints"]] == [1, 2, 3, 3]
    shown = answer("show", run, "--step", "2")
    assert shown["checkpoint"]["step"] == 2
    assert shown["tensors"]["parts/model/state/parameters/0.weight"]["shape"] == [8, 4]
    assert shown["legs"][0]["leg"] == 1
    said = CliRunner().invoke(app, ["ls", str(run)]).output
    assert " kB written" in said
    assert "0.0 MB" not in said
    assert answer("verify", run)["problems"] == []
    assert answer("gc", run)["files"] == 0


def test_show_lists_every_part(run: Path) -> None:
    """Also what holds no tensor is listed with its kind: schedule, counter, generators, the loader's position, the place."""
    found = {part["name"]: part for part in answer("show", run, "--step", "2")["parts"]}
    assert {name: part["kind"] for name, part in found.items()} == {
        "model": "module",
        "ema": "module",
        "optimizer": "optimizer",
        "scheduler": "scheduler",
        "scaler": "scaler",
        "count": "value",
        "python": "generator",
        "numpy": "generator",
        "torch": "generator",
        "loader 0": "loader position",
        "loop": "place in the loop",
    }
    assert found["scheduler"]["type"] == "StepLR"
    assert found["scheduler"]["tensors"] == 0
    assert found["scheduler"]["values"] >= len(parts()["scheduler"].state_dict())
    assert (found["count"]["tensors"], found["count"]["values"]) == (0, 1)
    assert found["torch"]["tensors"] == 1
    shown = CliRunner().invoke(app, ["show", str(run), "--step", "2"]).output
    assert re.search(r"^parts:\n  model +module \(Sequential\) +\d+ tensors, \d+ plain values\n", shown, re.MULTILINE)
    assert re.search(r"^  scheduler +scheduler \(StepLR\) +\d+ plain values\n", shown, re.MULTILINE)
    assert re.search(r"^  loader 0 +loader position +\d+ plain values\n", shown, re.MULTILINE)
    assert "\ntensors:\n  parts/model/state/parameters/0.weight  float32[8, 4]\n" in shown


def test_show_of_a_store_without_a_run(tmp_path: Path) -> None:
    """A checkpoint that another program saved in a store has tensors, and no parts that are known."""
    with Store(tmp_path) as store:
        store.save(b'{"epoch": 1}', {"weight": torch.zeros(3)}, step=1)
    shown = answer("show", tmp_path)
    assert shown["parts"] == []
    assert list(shown["tensors"]) == ["weight"]


def test_what_is_shared_counts_at_each_place(tmp_path: Path) -> None:
    """Generators that are parts, that a part holds, or that a loader draws from are listed; so is an object of two parts."""
    both, generator = [1, 2], torch.Generator()
    made = {"one": {"seen": both}, "other": {"seen": both}, "noise": np.random.default_rng(0)}
    with Run(tmp_path, save_every=None, background=False, **made) as run:
        source = DataLoader(TensorDataset(torch.arange(8)), 4, shuffle=True, generator=generator)
        for _ in run.batches(source):
            run.save()
    document = opened(Store(tmp_path, create=False), None).document
    assert b'{"is":"again"' in document
    found = {part.name: part for part in contents(document)}
    assert (found["one"].values, found["other"].values) == (2, 2)
    assert (found["noise"].kind, found["noise"].counts) == ("generator", "1 generator")
    assert [part.kind for name, part in found.items() if name.startswith("loader 0: ")] == ["generator"]


def test_export_gives_the_weights_of_a_state_dict(run: Path, tmp_path: Path) -> None:
    """The file loads into the module; compared with the run, it is identical."""
    target = tmp_path / "model.safetensors"
    answer("export", run, target)
    model = parts()["model"]
    assert not model.load_state_dict(load_file(target)).missing_keys
    assert answer("diff", run, target)["verdict"] == "identical"
    said = CliRunner().invoke(app, ["export", str(run), str(target), "--part", "student"])
    assert isinstance(said.exception, UsageError)
    assert "no module 'student'; it has: model, ema. Name one with --part." in str(said.exception)


def test_comparing_a_module_by_name(run: Path, tmp_path: Path) -> None:
    """``--part`` names the module that a file, or another checkpoint, is compared with; where there is none, what to name is said."""
    target = tmp_path / "ema.safetensors"
    answer("export", run, target, "--part", "ema")
    assert answer("diff", run, target, "--part", "ema")["verdict"] == "identical"
    assert answer("diff", run, target, status=1)["verdict"] == "different"
    found = answer("diff", f"{run}@1", f"{run}@2", "--part", "model", status=1)
    assert found["tensors"] == len(parts()["model"].state_dict())
    assert found["differences"][0]["name"] == "0.bias"
    for words, message in [
        ([run, target, "--part", "student"], "no module 'student'; it has: model, ema. Name one with --part."),
        ([target, target, "--part", "ema"], r"--part ema: neither .* is a run's checkpoint"),
        ([run / "trail", run / "trail", "--part", "ema"], "--part ema is for checkpoints"),
    ]:
        with pytest.raises(UsageError, match=message):
            CliRunner().invoke(app, ["diff", *map(str, words)], catch_exceptions=False)


def test_two_checkpoints_of_a_run_differ_tensor_by_tensor(run: Path) -> None:
    """Differences are in elements and in ULP."""
    found = answer("diff", f"{run}@1", f"{run}@2", status=1)
    weights = next(d for d in found["differences"] if d["name"] == "parts/model/state/parameters/0.weight")
    assert (weights["what"], weights["of"]) == ("values", 32)
    assert weights["ulp"] > 0
    assert found["identical"] < found["tensors"]


def test_the_steps_that_are_compared_are_named(run: Path, tmp_path: Path) -> None:
    """A run's folder stands for its newest checkpoint, which may be of another step than the other's."""
    newest = Store(run).checkpoints()[-1].step
    assert answer("diff", run, f"{run}@1", status=1)["steps"] == [newest, 1]
    printed = CliRunner().invoke(app, ["diff", str(run), f"{run}@1"]).output.splitlines()
    assert printed[1] == f"  compared: step {newest} of {run}, step 1 of {run}@1"
    answer("export", run, tmp_path / "model.safetensors")
    assert answer("diff", run, tmp_path / "model.safetensors")["steps"] == [newest, None]


def test_environments_of_two_checkpoints(tmp_path: Path) -> None:
    """Each checkpoint has the environment that it was saved in; how two differ is said, and decides nothing."""
    made = parts()
    with Run(tmp_path, save_every=None, background=False, keep=None, **made) as run:
        run.save()
        run.step = 1
        torch.set_num_threads(2)
        run.save()
        run.step = 2
        run.save()
    facts = answer("show", tmp_path, "--step", "1")["checkpoint"]["facts"]
    assert facts["environment"]["torch.threads"] == 2
    assert facts["environment"]["torch.version"] == torch.__version__
    assert answer("diff", f"{tmp_path}@1", f"{tmp_path}@2")["environment"] == []
    found = answer("diff", f"{tmp_path}@0", f"{tmp_path}@1")
    assert found["verdict"] == "identical"
    assert found["environment"] == [{"key": "torch.threads", "reference": 1, "other": 2}]
    printed = CliRunner().invoke(app, ["diff", f"{tmp_path}@0", f"{tmp_path}@1"]).output
    assert "saved in environments that differ:\n  torch.threads: 1 in the first, 2 in the second\n" in printed
    assert "environment" not in CliRunner().invoke(app, ["ls", str(tmp_path)]).output


def test_each_kind_of_difference_is_named(tmp_path: Path) -> None:
    """A bit, a dtype, a shape, a name, a NaN, a sign of zero."""
    one = {"same": torch.ones(2), "bit": torch.tensor([1.0, -0.0, 2.0]), "nan": torch.tensor([float("nan")])}
    one |= {"kind": torch.ones(2), "form": torch.ones(2), "gone": torch.ones(1), "long": torch.tensor([1.0]).double()}
    other = {"same": torch.ones(2), "bit": torch.tensor([1.0000001, 0.0, 2.0]), "nan": torch.tensor([1.0])}
    other |= {"kind": torch.ones(2).half(), "form": torch.ones(1, 2), "new": torch.ones(1), "long": -one["long"]}
    save_file(one, tmp_path / "one.safetensors")
    torch.save({"model": None} | other, tmp_path / "other.pt")
    found = {d.name: d for d in compare(tmp_path / "one.safetensors", tmp_path / "other.pt").differences}
    assert "same" not in found
    assert (found["bit"].differing, found["bit"].ulp) == (2, 1)
    assert (found["nan"].differing, found["nan"].ulp) == (1, None)
    assert found["long"].ulp == 2 * 0x3FF0_0000_0000_0000
    assert (found["kind"].what, found["kind"].second) == ("dtype", "float16[2]")
    assert (found["form"].what, found["form"].second) == ("shape", "float32[1, 2]")
    assert (found["gone"].what, found["new"].what) == ("only in the first", "only in the second")


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """Nothing of it runs, and the message says what to do."""

    class Harm:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "harm"),)

    torch.save({"weight": torch.ones(1), "harm": Harm()}, tmp_path / "bad.pt")
    with pytest.raises(CheckpointCorruptError, match=r"bad.pt cannot be read.*runs no code"):
        compare(tmp_path / "bad.pt", tmp_path / "bad.pt")
    assert not (tmp_path / "harm").exists()


def test_going_back_to_an_older_checkpoint(tmp_path: Path) -> None:
    """The run goes on from it, the newer ones stay, and the steps taken again are compared."""
    train(tmp_path, epochs=1, save_every=Every(steps=1), background=False, keep=None)
    assert answer("restore", tmp_path, "--step", "2")["checkpoint"]["step"] == 2
    with Run(tmp_path, save_every=None, **parts()) as run:
        assert run.step == 2
    again, _ = train(tmp_path, epochs=1)
    assert again.verdict is not None
    assert again.verdict.verdict == "identical"
