"""``bitproof.deterministic``: what it sets takes effect, is checked, and is put back."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bitproof as package
from bitproof.determinism import GROUPS, Choice, Deterministic, apply, deterministic
from bitproof.environment import describe
from bitproof.errors import UsageError
from bitproof.trail.reader import read_trail
from kit.proofs import TRAIN, Prover, bitproof

D6 = """
import json, torch, bitproof
torch.set_num_threads(2)
values, cells = torch.linspace(0, 1, 2_000_000), torch.arange(2_000_000) % 1000

def results():
    tries = [torch.zeros(1000).index_put_((cells,), values, accumulate=True) for _ in range(10)]
    return len({result.numpy().tobytes() for result in tries})

found = {"before": results()}
with bitproof.deterministic() as made:
    found["inside"] = results()
found["after"] = results()
torch.backends.disable_global_flags()
frozen = bitproof.deterministic()
found["frozen"] = {s.name: [s.took_effect, s.note] for s in frozen.settings}
print(json.dumps(found))
"""
RUNS_WITH_A_SET = """
import json, os, pathlib, sys
print(os.environ.get("PYTHONHASHSEED"), os.environ.get("CUBLAS_WORKSPACE_CONFIG"), hash("bitproof"))
sys.exit(3)
"""


def settings_of_torch() -> dict[str, Any]:
    """Everything that is described of this process, and what Inductor was told."""
    import torch._inductor.config as inductor

    return describe() | {"inductor": inductor.deterministic}  # type: ignore[attr-defined]


def effects(made: Deterministic) -> dict[str, bool]:
    """Which settings took effect."""
    return {setting.name: setting.took_effect for setting in made.settings}


def test_the_operation_that_does_not_repeat(tmp_path: Path) -> None:
    """Ten parallel additions give several results without, one with, and several again afterwards; frozen flags are told."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": str(Path(package.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", D6], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["before"] > 1
    assert found["inside"] == 1
    assert found["after"] > 1
    effect, note = found["frozen"]["torch.backends.cudnn.deterministic"]
    assert not effect
    assert "disable_global_flags" in note
    assert found["frozen"]["torch.use_deterministic_algorithms"] == [True, ""]


@pytest.mark.parametrize("before", ["as usual", "all the other way round"])
def test_settings_are_put_back(before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was set before is set again at the end of the block, also after an exception."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    usual = apply(Choice())  # whose undo() ends this test
    try:
        if before == "as usual":
            usual.undo()
        else:
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[assignment]
            torch.backends.cudnn.benchmark = True
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":0:0"
        started = settings_of_torch()
        made = deterministic(seed=None)
        with pytest.raises(KeyError), made:
            raise KeyError(str(inside := settings_of_torch()))
        assert settings_of_torch() == started
    finally:
        usual.undo()
    assert inside["torch.deterministic"]
    assert not inside["torch.deterministic_warn_only"]
    assert not inside["torch.fill_uninitialized_memory"]
    assert inside["torch.mkldnn_deterministic"]
    assert inside["torch.cudnn_deterministic"]
    assert not inside["torch.cudnn_benchmark"]
    assert inside["inductor"]
    assert inside["env.CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert {name for name, took in effects(made).items() if not took} <= {"PYTHONHASHSEED"}


def test_blocks_inside_blocks() -> None:
    """An inner block puts back what the outer one set."""
    with deterministic(seed=None, warn_only=True):
        with deterministic(seed=None, fill_memory=True):
            assert torch.get_deterministic_debug_mode() == 2
            assert describe()["torch.fill_uninitialized_memory"]
        assert torch.get_deterministic_debug_mode() == 1
        assert not describe()["torch.fill_uninitialized_memory"]
    assert torch.get_deterministic_debug_mode() == 0


def test_one_block_each() -> None:
    """A second block would have nothing in effect, and says so; a second undo leaves what was set since."""
    with deterministic(seed=None) as made:
        with pytest.raises(UsageError, match="serves one `with` block"), made:
            pass
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(UsageError, match=r"Call deterministic\(\) again"), made:
        pass
    with deterministic(seed=None):
        made.undo()
        assert torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("given", [{"warn_only": "no"}, {"fill_memory": None}, {"fill_memory": "x"}, {"warn_only": 1}])
def test_an_option_that_is_no_bool(given: dict[str, Any]) -> None:
    """Named with its value; nothing was set."""
    name, value = next(iter(given.items()))
    with pytest.raises(UsageError, match=rf"deterministic\({name}={value!r}\): expected True or False"):
        deterministic(**given)
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_that_cannot() -> None:
    """An operation without a deterministic implementation is refused, or warned of on request."""
    with deterministic(), pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    with deterministic(warn_only=True), pytest.warns(UserWarning, match="put_ does not have a deterministic"):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))


def draws() -> tuple[float, float, float]:
    """Draw from each generator."""
    return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**64 - 1])
def test_seeds(seed: int) -> None:
    """Every generator starts from the seed, NumPy's from its lower half; what was drawn in a block stays drawn."""
    with deterministic(seed) as made:
        first = draws()
    assert all(effects(made)[f"{name}"] for name in ("random.seed", "numpy.random.seed", "torch.manual_seed"))
    again = draws()
    assert first != again
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
    assert (draws(), draws()) == (first, again)


def test_without_a_seed() -> None:
    """``seed=None`` leaves every generator where it is."""
    deterministic(3).undo()
    expected = draws()
    deterministic(3).undo()
    with deterministic(seed=None) as made:
        assert draws() == expected
    assert not any("seed" in name.lower() for name in effects(made) if name != "PYTHONHASHSEED")


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "0", True])
def test_a_seed_that_is_none(seed: Any) -> None:
    """A seed that is no whole number in range is refused before anything is set."""
    before = settings_of_torch()
    with pytest.raises(UsageError, match=r"expected a whole number, 0 ≤ seed < 2\*\*64"):
        deterministic(seed)
    assert settings_of_torch() == before


def test_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer lists each setting with what it was and is, and says what did not take effect and what to do."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr("bitproof.determinism._at_start", lambda _name: None)
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # too late: sets are in their order already
    with deterministic(5) as made:
        lines = str(made).splitlines()
    assert lines[0] == "10 of 11 settings are in effect"
    assert any(line.split() == ["torch.use_deterministic_algorithms", "'off'", "→", "'error'"] for line in lines)
    (hash_seed,) = [line for line in lines if "PYTHONHASHSEED" in line.split()[0]]
    assert "NOT in effect" in hash_seed
    assert "bitproof record --deterministic" in hash_seed


def test_too_late_for_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once CUDA has started, the variable that cuBLAS reads is said to come too late, unless it was there already."""
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with apply(Choice(groups=("cublas",))) as made:
        assert effects(made)["CUBLAS_WORKSPACE_CONFIG"]
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    with apply(Choice(groups=("cublas",))) as made:
        assert not effects(made)["CUBLAS_WORKSPACE_CONFIG"]
        assert "CUDA has started without it" in made.settings[0].note
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


@pytest.mark.parametrize("group", GROUPS)
def test_each_group_alone(group: str) -> None:
    """A part that is set alone leaves the settings of the others as they are."""
    whole, before = {}, settings_of_torch()
    for name in GROUPS:
        with apply(Choice(groups=(name,))):
            whole[name] = {key for key, value in settings_of_torch().items() if before.get(key) != value}
    assert whole[group]
    assert not any(whole[group] & whole[other] for other in GROUPS if other != group)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
        (
            {"PYTHONHASHSEED": "random", "CUBLAS_WORKSPACE_CONFIG": ""},
            {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        ),
        ({"PYTHONHASHSEED": "12", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}, {}),
    ],
)
def test_variables_of_a_child(given: dict[str, str], expected: dict[str, str]) -> None:
    """A child gets the variables that only count from its start, unless it has values that serve as well."""
    assert Choice().variables(given) == expected


# --- record and prove ----------------------------------------------------------------------------------------------


def test_record(tmp_path: Path) -> None:
    """A recorded command is deterministic and seeded from its start, and the trail says so."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.rand(3, 2)).sum().backward()\n"
        "optimizer.step()\n"
        "print(hash('bitproof'), model.weight.sum().item())\n"
    )
    words = ["record", "--deterministic", "--seed", "7", "-o", "a.trail", "--", sys.executable, "train.py"]
    answer = bitproof(*words, cwd=tmp_path)
    assert answer.status == 0, answer.err
    torch.manual_seed(7)
    model = torch.nn.Linear(2, 2)
    x = torch.rand(3, 2)
    model(x).sum().backward()
    expected = (model.weight - 0.1 * model.weight.grad).sum().item()  # type: ignore[operator]
    zero = subprocess.run(
        [sys.executable, "-c", "print(hash('bitproof'))"],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.out.split()[0] == zero.stdout.strip()
    assert float(answer.out.split()[1]) == pytest.approx(expected)
    (leg,) = read_trail(tmp_path / "a.trail").legs
    assert leg.environment["torch.deterministic"] is True
    assert leg.environment["torch.fill_uninitialized_memory"] is False
    assert leg.environment["env.PYTHONHASHSEED"] == "0"
    assert leg.environment["env.CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    seeds = {e.data["generator"]: e.data["seed"] for e in leg.events if e.kind == "seed"}
    assert seeds == {"python": 7, "numpy": 7, "torch": 7}
    assert [e.data["mode"] for e in leg.events if e.kind == "deterministic-set"] == [True]


@pytest.mark.parametrize("command", ["record", "prove"])
def test_the_childs_variables(command: str, tmp_path: Path) -> None:
    """With ``--deterministic`` the command starts with the hash seed and the cuBLAS variable; without, as it would."""
    where = ["-o", "{}.trail"] if command == "record" else ["--work"]
    told = []
    unset = {"PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    for number, options in enumerate(([], ["--deterministic"])):
        place = [word.format(number) for word in where] if command == "record" else [*where, f"work-{number}"]
        words = [command, *options, *place, "--", sys.executable, "-c", RUNS_WITH_A_SET, "{out}"]
        answer = bitproof(*words, cwd=tmp_path, env=environment)
        assert answer.status == 3
        told.append(next(line for line in answer.out.splitlines() if "None" in line or ":4096:8" in line).split())
    assert told[0][-3:-1] == ["None", "None"]
    assert told[1][-3:-1] == ["0", ":4096:8"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seed", "1"], "--seed 1: it is used with --deterministic only"),
        (["--deterministic", "--seed", "-1"], "--seed -1: expected a whole number, 0 ≤ seed < 2**64"),
    ],
)
@pytest.mark.parametrize("command", [["record", "-o", "a.trail"], ["prove"]], ids=["record", "prove"])
def test_bad_options(command: list[str], options: list[str], said: str, tmp_path: Path) -> None:
    """A seed that would not be used, or is none, is refused before anything is run."""
    answer = bitproof(*command, *options, "--", sys.executable, "-c", "print('ran')", "{out}", cwd=tmp_path)
    assert answer.status == 2
    assert said in answer.err
    assert answer.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_prove(proved_here: Prover) -> None:
    """A proof with ``--deterministic`` sets every leg alike, and a right script is proven as it would be without."""
    verdict = proved_here(kill="5", deterministic=Choice(seed=3))
    assert verdict.verdict == "identical"
    assert verdict.trails is not None
    paths = [verdict.trails.reference, *verdict.trails.interrupted, *verdict.trails.resumed]
    assert len(paths) == 3
    for path in paths:
        (leg,) = read_trail(Path(path)).legs
        assert leg.environment["torch.deterministic"] is True
        assert leg.environment["env.PYTHONHASHSEED"] == "0"
        assert ("torch", 3) in {(e.data["generator"], e.data["seed"]) for e in leg.events if e.kind == "seed"}


@pytest.fixture
def proved_here(tmp_path: Path) -> Prover:
    """Prove the tiny training script in the test's folder."""
    assert TRAIN.exists()
    return Prover(tmp_path / "work")
