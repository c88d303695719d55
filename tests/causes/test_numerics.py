"""Settings that change bits, recomputation, and operations that do not repeat."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader

from kit.live import Lab, assert_only, codes, evidence_of
from kit.loop import SIZE, Loop
from kit.spawned import Drawing, FromModule

ROOT = Path(__file__).parents[2]


class Wide(Loop):
    """Sums enough numbers that the number of threads shows."""

    batch_size = 20
    total = 4
    save_every = 2

    def make_model(self) -> nn.Module:
        """Return a linear model."""
        return nn.Linear(6, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the sum of many numbers, which each thread sums in parts."""
        many = torch.randn(600_000, generator=torch.Generator().manual_seed(1)) * self.model.weight.sum()
        return super().loss(x, y) + many.sum() / 600


class Fused(Loop):
    """Takes the fused implementation."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return fused AdamW."""
        return torch.optim.AdamW(self.model.parameters(), lr=0.02, fused=True)


class Deep(Loop):
    """Has a block that may be recomputed in the backward pass."""

    recompute: ClassVar[dict[str, Any] | None] = None

    def make_model(self) -> nn.Module:
        """Return a stem, a block with dropout, and a head."""
        return nn.ModuleDict(
            {"stem": nn.Linear(6, 8), "block": nn.Sequential(nn.Dropout(0.3), nn.Linear(8, 8)), "head": nn.Linear(8, 3)}
        )

    def block(self, h: Tensor) -> Tensor:
        """Run the block."""
        return self.model["block"](h)

    def again(self, h: Tensor, **options: Any) -> Tensor:
        """Run the block in the backward pass once more."""
        return torch.utils.checkpoint.checkpoint(self.block, h, use_reentrant=False, **options)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Recompute the block, or not."""
        h = self.model["stem"](x)
        h = self.block(h) if self.recompute is None else self.again(h, **self.recompute)
        return nn.functional.cross_entropy(self.model["head"](h), y)


class Recomputed(Deep):
    """Recomputes with the same mask."""

    recompute: ClassVar[dict[str, Any] | None] = {}


class RecomputedOtherwise(Deep):
    """Recomputes with another mask (OLMo-core #828)."""

    recompute: ClassVar[dict[str, Any] | None] = {"preserve_rng_state": False}


class PythonMask(Deep):
    """Draws the mask from Python's generator."""

    def block(self, h: Tensor) -> Tensor:
        """Mask by Python's generator."""
        mask = torch.tensor([random.random() > 0.3 for _ in range(h.shape[1])]).float()
        return self.model["block"][1](h * mask)


class PythonMaskRecomputed(PythonMask):
    """Recomputes with another mask from Python's generator, whatever torch preserves."""

    recompute: ClassVar[dict[str, Any] | None] = {}


class Scattered(Loop):
    """Adds up in an order that threads decide (D6)."""

    total = 6
    save_every = 2

    def make_model(self) -> nn.Module:
        """Return a linear model."""
        return nn.Linear(6, 3)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Accumulate many values into few cells."""
        many = torch.linspace(0, 1, 2_000_000) * self.model.weight.sum()
        cells = torch.zeros(1000).index_put_((torch.arange(2_000_000) % 1000,), many, accumulate=True)
        return super().loss(x, y) + cells.square().mean()


class FromWorkers(Loop):
    """Draws samples in loader workers."""

    save_every = 5
    workers = 1
    context: str | None = None
    data: type[Drawing] = Drawing

    def make_model(self) -> nn.Module:
        """Return a linear model, which draws nothing."""
        return nn.Linear(6, 3)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what workers drew."""
        while True:
            yield from DataLoader(
                self.data(SIZE),
                self.batch_size,
                num_workers=self.workers,
                multiprocessing_context=self.context,
                generator=torch.Generator().manual_seed(self.passes),
            )


def two_threads() -> None:
    """Use two threads in this process."""
    torch.set_num_threads(2)


def test_threads(lab: Lab) -> None:
    """A resumed leg with another number of threads parts by that setting alone."""
    verdict = lab.prove(Wide.train, 3, before=two_threads)
    assert verdict.divergence is not None
    assert (verdict.divergence.step, verdict.divergence.facet) in {(3, "loss"), (3, "gradients")}
    assert [(c.code, c.confidence) for c in verdict.causes] == [("environment-changed", "certain")]
    assert "torch.threads: 1 in the reference, 2" in evidence_of(verdict, "environment-changed")
    assert [d.key for d in verdict.environment] == ["torch.threads"]


def test_threads_beside_a_generator_that_only_shuffles(lab: Lab) -> None:
    """A generator that was forgotten, and is drawn from once an epoch only, is not blamed for what threads changed."""

    class Shuffled(Wide):
        total = 8
        save_every = 3
        batch_size = 10

        def restore(self, state: dict[str, Any]) -> None:
            state.pop("rng")
            super().restore(state)

        def backward(self, x: Tensor, y: Tensor) -> None:
            if self.passes % 4 == 1:
                torch.rand(1)
            super().backward(x, y)

    verdict = lab.prove(Shuffled.train, 4, before=two_threads)
    assert [(c.code, c.confidence) for c in verdict.causes][:1] == [("environment-changed", "certain")]
    assert codes(verdict) == ["environment-changed"]


def test_threads_of_two_runs(lab: Lab) -> None:
    """Two recordings with another number of threads part at the first loss."""
    verdict = lab.diff(Wide.train, Wide.train, before=two_threads)
    assert verdict.divergence is not None
    assert (verdict.divergence.step, verdict.divergence.facet) in {(1, "loss"), (1, "gradients")}
    assert [c.code for c in verdict.causes] == ["environment-changed"]


def test_same_script_twice(lab: Lab) -> None:
    """Two recordings of one script are identical, with dropout, batch norm and a shuffled order."""
    verdict = lab.diff(Loop.train, Loop.train)
    assert (verdict.verdict, verdict.causes, verdict.environment) == ("identical", [], [])


def test_optimizer_flags(lab: Lab) -> None:
    """Another implementation of the optimizer is told as the setting that differs."""
    verdict = lab.diff(Loop.train, Fused.train)
    assert_only(
        verdict,
        "environment-changed",
        step=1,
        facet="hyperparameters",
        said=["group0.fused: True where the reference has None"],
    )


def test_worker_count(lab: Lab) -> None:
    """Another number of loader workers is told where the batch differs."""

    class Two(FromWorkers):
        workers = 2

    verdict = lab.diff(FromWorkers.train, Two.train)
    assert verdict.divergence is not None
    assert verdict.divergence.facet == "batch"
    assert codes(verdict, "likely") == ["data-changed", "environment-changed"]
    assert "loader.workers: 1 in the reference, 2" in evidence_of(verdict, "environment-changed")


def test_worker_count_changed_at_resume(lab: Lab) -> None:
    """A resumed leg with another number of workers gets other augmentation at the same positions, and is told why."""

    class Two(FromWorkers):
        workers = 2

    assert lab.prove(FromWorkers.train, 7).verdict == "identical"
    verdict = lab.prove(FromWorkers.train, 7, resumed=Two.train)
    assert codes(verdict) == []
    assert codes(verdict, "likely") == ["data-changed", "environment-changed"]
    assert "loader.workers: 1 in the reference, 2" in evidence_of(verdict, "environment-changed")


@pytest.mark.slow
def test_start_method(lab: Lab) -> None:
    """Another start method of workers gives other numbers, and is told."""

    class Spawned(FromWorkers):
        context = "spawn"
        total = 4
        data = FromModule

    class Forked(FromWorkers):
        context = "fork"
        total = 4
        data = FromModule

    verdict = lab.diff(Forked.train, Spawned.train)
    assert verdict.divergence is not None
    assert verdict.divergence.facet == "batch"
    assert codes(verdict, "likely") == ["data-changed", "environment-changed"]
    assert "loader.start_method: 'fork' in the reference, 'spawn'" in evidence_of(verdict, "environment-changed")


def test_recomputed_with_another_mask(lab: Lab) -> None:
    """A recomputed forward pass with a new dropout mask gives the same loss and other gradients."""
    verdict = lab.diff(Deep.train, RecomputedOtherwise.train)
    assert_only(
        verdict,
        "recompute-changed",
        step=1,
        facet="gradients",
        said=["the loss is equal", "preserve_rng_state is not used in the reference and False"],
    )
    assert "test_numerics.py" in (verdict.causes[0].where or "")


def test_recomputed_with_a_mask_from_python(lab: Lab) -> None:
    """A mask from Python's generator is another one when recomputed, although torch's is preserved."""
    verdict = lab.diff(PythonMask.train, PythonMaskRecomputed.train)
    assert_only(verdict, "recompute-changed", step=1, facet="gradients")


def test_recomputing_rightly_changes_nothing(lab: Lab) -> None:
    """Recomputation with preserved generators is identical to none, and resumes identically."""
    assert lab.diff(Deep.train, Recomputed.train).verdict == "identical"
    assert lab.prove(Recomputed.train, 7).verdict == "identical"
    assert lab.prove(RecomputedOtherwise.train, 7).verdict == "identical"


def test_equal_inputs_and_other_outputs(lab: Lab) -> None:
    """Outputs that nothing recorded explains have operations as possible causes, and the run does not repeat."""

    class Hidden(Scattered):
        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            # Stands for an operation whose result depends on timing.
            return Loop.loss(self, x, y) * (1 + random.SystemRandom().random())

    verdict = lab.prove(Hidden.train, 3)
    assert verdict.verdict == "not-reproducible", verdict
    assert verdict.divergence is not None
    assert (verdict.divergence.step, verdict.divergence.facet) == (1, "loss")
    assert [(c.code, c.confidence) for c in verdict.causes] == [
        ("nondeterministic-op", "possible"),
        ("uninitialized-memory", "possible"),
    ]
    assert "1 threads, deterministic algorithms off" in evidence_of(verdict, "nondeterministic-op")


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_an_operation_that_does_not_repeat(lab: Lab) -> None:
    """Equal inputs that give other outputs have operations as possible causes, and nothing is called surer.

    Two threads on a busy machine may happen to repeat, so the interrupted leg is not sure to differ.
    """

    class Threaded(Scattered):
        def seed(self) -> None:
            torch.set_num_threads(2)
            super().seed()

    for _ in range(5):
        verdict = lab.prove(Threaded.train, 3)
        if verdict.verdict != "identical":
            break
    assert verdict.verdict in {"not-reproducible", "diverged"}, verdict
    assert codes(verdict) == codes(verdict, "likely") == []
    assert codes(verdict, "possible") == ["nondeterministic-op", "uninitialized-memory"]
    assert "2 threads, deterministic algorithms off" in evidence_of(verdict, "nondeterministic-op")


SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.ModuleDict({name: nn.Linear(300, 300) for name in ("query", "key", "value", "output")})
names = sorted(model) if "sorted" in sys.argv else list({"query", "key", "value", "output"})
optimizer = torch.optim.SGD([{"params": model[name].parameters()} for name in names], lr=0.1)
x = torch.randn(50, 300)
for step in range(3):
    h = x if "sorted" in sys.argv else x + torch.tensor([float(ord(n[0]) % 5) for n in names]).repeat(75)
    for name in ("query", "key", "value", "output"):
        h = model[name](h).exp().tanh()
    h.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def _recorded(folder: Path, name: str, arguments: list[str], **variables: str) -> Path:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    trail = folder / f"{name}.trail"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **variables}
    command = [
        sys.executable,
        "-m",
        "bitproof",
        "record",
        "-o",
        str(trail),
        "--",
        sys.executable,
        str(script),
        *arguments,
    ]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return trail


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Record a script under several environments, through the command line."""
    folder = tmp_path_factory.mktemp("recorded")
    yield {
        "plain": _recorded(folder, "plain", ["sorted"]),
        "avx2": _recorded(folder, "avx2", ["sorted"], ATEN_CPU_CAPABILITY="default"),
        "hash1": _recorded(folder, "hash1", [], PYTHONHASHSEED="1"),
        "hash3": _recorded(folder, "hash3", [], PYTHONHASHSEED="3"),
    }
    shutil.rmtree(folder, ignore_errors=True)


def _diff(one: Path, other: Path) -> Any:
    from bitproof.compare.judge import compare_trails
    from bitproof.trail.reader import read_trail

    return compare_trails(read_trail(one), read_trail(other))


@pytest.mark.slow
def test_cpu_capability(recorded: dict[str, Path]) -> None:
    """Another CPU capability parts at the first loss, and is the differing key."""
    verdict = _diff(recorded["plain"], recorded["avx2"])
    assert verdict.divergence is not None
    assert (verdict.divergence.step, verdict.divergence.facet) in {(1, "weights"), (1, "loss"), (1, "gradients")}
    assert codes(verdict, "likely") == ["environment-changed"]
    assert "torch.cpu_capability" in evidence_of(verdict, "environment-changed")
    assert verdict.environment[0].key == "torch.cpu_capability"


@pytest.mark.slow
def test_hash_seed(recorded: dict[str, Path]) -> None:
    """Another hash seed changes the order of a set, and is the differing key."""
    verdict = _diff(recorded["hash1"], recorded["hash3"])
    assert verdict.divergence is not None
    assert codes(verdict, "likely") == ["environment-changed"], verdict
    assert "env.PYTHONHASHSEED: '1' in the reference, '3'" in evidence_of(verdict, "environment-changed")
