"""The audit of a loader under two topologies, and its command."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_samples import Drawing
from typer.testing import CliRunner

from bitproof.cli.data import app
from bitproof.data import Loader, Topology, audit
from bitproof.data.audit import Audit, Difference
from bitproof.data.errors import BatchError, TargetError, TopologyError

ONE, TWO = Topology(1, 0), Topology(2, 2)


class OwnGenerator(Drawing):
    """Draws from a generator of its own, which every process has from the start."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.generator = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return index, self.generator.random() if index == 7 else 0.0


def test_identical() -> None:
    """A data set that draws from the global generators is the same under both, across epochs."""
    found = audit(Loader(Drawing(30), 4, shuffle=True, seed=1), ONE, TWO, batches=10)

    assert found.difference is None
    assert (found.samples, found.unseen) == (38, 0)
    assert str(found).startswith("identical: 38 samples in 10 batches under 1x0 and 2x2; ranks' shares are disjoint")


def test_first_difference_is_named() -> None:
    """A data set with a generator of its own is found out, at the first sample that differs."""
    loader = Loader(OwnGenerator(30), 4, shuffle=True, seed=1)
    found = audit(loader, ONE, TWO, batches=14)
    position = next(p for p in range(30) if loader.order.locate([p])[1][0] == 7)

    # The first epoch draws once in each: the second draw is the second in one process, and the first in another worker.
    assert found.difference is not None
    assert found.difference.facet == "content"
    assert found.difference.first == found.difference.second == (found.difference.position // 30, 7)
    assert found.difference.position >= position
    assert "came out differently" in str(found)


def test_unknown_content() -> None:
    """Samples whose bytes are unknown are compared by order, and that is said."""

    class Objects(Drawing):
        def __getitem__(self, index: int) -> Any:
            return object()

    found = audit(Loader(Objects(8), 4), ONE, Topology(2, 0), batches=2)

    assert found.difference is None
    assert "8 of them by order only" in str(found)


def test_batch_not_divisible() -> None:
    """A world size that does not fit the batch is refused."""
    with pytest.raises(BatchError, match="not divisible"):
        audit(Loader(Drawing(9), 4), ONE, Topology(3, 0))


@pytest.mark.parametrize("text", ["2", "x", "0x1", "-1x2", "2x"])
def test_bad_topology(text: str) -> None:
    """A topology that is no pair is refused with an example."""
    with pytest.raises(TopologyError, match="RANKSxWORKERS, as in 4x2"):
        Topology.parse(text)


SCRIPT = """
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
from bitproof.data import Loader

class Own:
    def __init__(self): self.generator = np.random.default_rng(0)
    def __len__(self): return 12
    def __getitem__(self, index): return self.generator.random()

own = Own()
data = TensorDataset(torch.arange(12))
plain = DataLoader(data, batch_size=4)
shuffled = DataLoader(data, batch_size=4, shuffle=True, num_workers=1)
buckets = DataLoader(data, batch_sampler=[[0, 1], [2, 3, 4]])
def make(): return Loader(data, 4, shuffle=True)
"""


def run(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    """Run `bitproof data check` on the script above."""
    script = tmp_path / "audited_script.py"
    script.write_text(SCRIPT)
    found = CliRunner().invoke(app, ["check", f"{script}:{arguments[0]}", *arguments[1:]])
    return found.exit_code, found.output or str(found.exception)


@pytest.mark.parametrize("name", ["make", "data", "plain"])
def test_command_identical(tmp_path: Path, name: str) -> None:
    """The command takes a function, a data set or a plain DataLoader, and says identical."""
    status, output = run(tmp_path, name, "--batches", "4", "--second", "2x1")

    assert output.startswith("identical: ")
    assert status == 0


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("make", []),
        (
            "data",
            [
                "TensorDataset is a data set",
                "    loader = bitproof.data.Loader(dataset, 8, shuffle=True, seed=0)",
                "Train",
            ],
        ),
        (
            "plain",
            [
                "A DataLoader holds no position",
                "    loader = bitproof.data.Loader.from_torch(loader, seed=0)",
                "Train with that: the order of samples stays as it is.",
                "What samples draw",
                "To keep the order",
            ],
        ),
        (
            "shuffled",
            [
                "A DataLoader holds no position",
                "    loader = bitproof.data.Loader.from_torch(loader, seed=0)",
                "Train with that: samples come in another order than RandomSampler's, from seed 0. It changes once",
                "What",
            ],
        ),
        (
            "buckets",
            [
                "A DataLoader holds no position",
                "    loader = bitproof.data.Loader.from_torch(loader, seed=0)",
                "Train with that: batches are those of list, which draws from generators that are set",
                "What",
            ],
        ),
    ],
)
def test_command_says_how_to_convert(tmp_path: Path, name: str, advice: list[str]) -> None:
    """What is no Loader yet comes with the line that makes it one, and with what changes once."""
    _, output = run(tmp_path, name, "--batches", "2", "--second", "2x0")
    _, as_json = run(tmp_path, name, "--batches", "2", "--second", "2x0", "--json")
    first, *lines = output.splitlines()

    assert first.startswith("identical: ")
    assert len(lines) == len(advice)
    for line, expected in zip(lines, advice, strict=True):
        assert line.startswith(f"  {expected}")
    assert [f"  {line}" for line in json.loads(as_json)["advice"]] == lines


BROKEN = """
import sys
number = 3
def needs(x): return x
class Bad:
    def __len__(self): return 12
    def __getitem__(self, index): raise OSError("disk gone")
bad = Bad()
"""


@pytest.mark.parametrize(
    ("script", "name", "message"),
    [
        (BROKEN, "number", r"is 3, of type int: expected a bitproof Loader, a DataLoader, a map-style data set"),
        (BROKEN, "Bad", r"is <class .*Bad.>, of type type: expected"),
        (BROKEN, "needs", r"calling needs\(\) without arguments failed with TypeError: .*'x'\. Make"),
        (BROKEN, "bad", r"reading its samples failed with OSError: disk gone at .*broken_script.py:7\."),
        (
            "import nothing_here",
            "x",
            r"importing it failed with ModuleNotFoundError: .*nothing_here' at .*broken_script.py:1\.",
        ),
        ("x = (", "x", r"importing it failed with SyntaxError"),
        ("import sys; sys.exit(3)", "x", r"importing it failed with SystemExit: 3 .*__main__"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_command_over_broken_code(tmp_path: Path, script: str, name: str, message: str, workers: int) -> None:
    """What the user's own code raises is one message with its place, and no finding."""
    path = tmp_path / "broken_script.py"
    path.write_text(script)
    found = CliRunner().invoke(app, ["check", f"{path}:{name}", "--first", f"1x{workers}"])

    assert isinstance(found.exception, TargetError)
    assert re.search(message, str(found.exception))


def test_command_finding(tmp_path: Path) -> None:
    """A difference is printed, as JSON where asked, with status 1."""
    status, output = run(tmp_path, "own", "--second", "2x1", "--json")

    assert json.loads(output)["difference"]["facet"] == "content"
    assert status == 1


def test_command_finding_recommends_no_loader(tmp_path: Path) -> None:
    """Where the loader that was made for the data set differs itself, what to do about that is said in place of how to make it."""
    status, output = run(tmp_path, "own", "--second", "2x1")
    _, as_json = run(tmp_path, "own", "--second", "2x1", "--json")
    first, *lines = output.splitlines()

    assert first.startswith("different at position ")
    assert lines == [
        "  What to do: draw from the global generators or bitproof.data.sample_rng(), and keep nothing between samples.",
        "  Then check again: no loader makes up for this.",
    ]
    assert [f"  {line}" for line in json.loads(as_json)["advice"]] == lines
    assert status == 1


def test_what_to_do_about_another_order() -> None:
    """A difference in the order comes with a remedy of its own; no difference, with none."""
    settings = {"first": ONE, "second": TWO, "batches": 1, "samples": 4, "unseen": 0}
    other = Difference(position=0, facet="order", first=(0, 1), second=(0, 2))

    assert "let the batches follow from seed and epoch alone" in Audit(**settings, difference=other).advice[0]
    assert Audit(**settings, difference=None).advice == ()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing", "has no 'nothing'. It has: "),
        ("make --first 3", "RANKSxWORKERS"),
        ("make --first 3x0", "not divisible"),
    ],
)
def test_command_bad_input(tmp_path: Path, target: str, message: str) -> None:
    """A wrong name, topology or batch is refused with a message."""
    status, output = run(tmp_path, *target.split())

    assert message in output
    assert status != 0


@pytest.mark.parametrize(
    ("target", "message"), [("x.py", "expected FILE.py:NAME"), ("no.py:x", "no file"), ("no_mod:x", "no module")]
)
def test_command_bad_target(target: str, message: str) -> None:
    """A target that is not there is refused with what was expected."""
    found = CliRunner().invoke(app, ["check", target])

    assert isinstance(found.exception, TargetError)
    assert message in str(found.exception)


def test_tensors_are_compared_exactly() -> None:
    """A sample that differs in the sign of a zero is a difference."""

    class Zero(Drawing):
        reads = 0

        def __getitem__(self, index: int) -> torch.Tensor:
            self.reads += 1
            return torch.tensor([-0.0 if self.reads > 4 else 0.0])

    found = audit(Loader(Zero(4), 4, fingerprint="known"), ONE, ONE, batches=1)

    assert found.difference is not None
