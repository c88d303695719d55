"""What can change bits is described, and differences are named, the likeliest first."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bitproof
from bitproof.environment import LIKELIEST, Difference, compare, describe

SHOW = """
import json, sys, torch
from bitproof import environment
print(json.dumps(environment.describe()))
"""


def described(code: str = SHOW, **variables: str) -> dict[str, object]:
    """Describe the environment of a fresh process."""
    environment = {**os.environ, "PYTHONPATH": str(Path(bitproof.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONHASHSEED", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | variables, capture_output=True, text=True, check=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def usual() -> dict[str, object]:
    """This machine's environment."""
    return described()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OMP_NUM_THREADS": "2"}, ["torch.threads", "env.OMP_NUM_THREADS"]),
        ({"ATEN_CPU_CAPABILITY": "default"}, ["torch.cpu_capability", "env.ATEN_CPU_CAPABILITY"]),
        ({"PYTHONHASHSEED": "5"}, ["env.PYTHONHASHSEED"]),
        ({}, []),
    ],
    ids=["threads", "capability", "hash seed", "nothing"],
)
def test_a_variable_shows_in_its_keys(usual: dict[str, object], variables: dict[str, str], expected: list[str]) -> None:
    """Threads, CPU capability and hash seed each show where they act, the effect before the variable; else all is equal."""
    assert [difference.key for difference in compare(usual, described(**variables))] == expected


def test_settings_of_torch_show() -> None:
    """Flags that a script sets, and the start method of its workers, are described as they are then."""
    code = SHOW.replace(
        "print(",
        """import multiprocessing
before = environment.describe()
torch.use_deterministic_algorithms(True, warn_only=True)
torch.set_default_dtype(torch.float64)
torch.set_float32_matmul_precision("high")
torch.backends.mkldnn.enabled = False
torch.set_num_threads(2)
multiprocessing.set_start_method("spawn")
found = {d.key: [d.reference, d.other] for d in environment.compare(before, environment.describe())}
print(""",
    ).replace("environment.describe()))", "found))")
    start = {"fork", "forkserver", "spawn"}
    found = described(code)
    assert set(found) == {
        "torch.deterministic",
        "torch.deterministic_warn_only",
        "torch.default_dtype",
        "torch.matmul_precision",
        "torch.fp32_precision.cuda.matmul",
        "torch.fp32_precision.mkldnn.matmul",
        "torch.mkldnn",
        "torch.threads",
        "multiprocessing.start_method",
    }
    assert found["torch.threads"] == [1, 2]
    assert set(found["multiprocessing.start_method"]) <= start  # type: ignore[call-overload]


def test_without_torch() -> None:
    """A process that has not imported torch is described without it, and does not import it for that."""
    found = described(SHOW.replace(", torch", "").replace("print(", "assert 'torch' not in sys.modules\nprint("))
    assert not any(key.startswith("torch.") for key in found)
    assert {"python.version", "os", "cpu.model", "cpu.count", "package.torch", "package.numpy"} <= set(found)
    assert found["cpu.model"]


def test_compare_lists_the_likeliest_first() -> None:
    """Differences come in the order of what is likeliest to change bits, keys that only one side has among them."""
    reference = {"os": "a", "torch.threads": 1, "env.WORLD_SIZE": None, "package.numpy": "1", "zz": 1, "same": 2}
    other = {"os": "b", "torch.threads": 2, "env.WORLD_SIZE": "2", "package.numpy": "2", "same": 2}
    assert compare(reference, other) == [
        Difference("torch.threads", 1, 2),
        Difference("package.numpy", "1", "2"),
        Difference("env.WORLD_SIZE", None, "2"),
        Difference("os", "a", "b"),
        Difference("zz", 1, None),
    ]
    assert compare(other, other) == []
    assert len(set(LIKELIEST)) == len(LIKELIEST)


def test_the_description_is_stable() -> None:
    """Two looks in one process are equal, and everything can be written as JSON."""
    assert describe() == describe()
    assert json.loads(json.dumps(describe())) == describe()
