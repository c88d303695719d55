"""Generators that are not continued, planted in real runs."""

import os
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from kit.live import Job, Lab, assert_only, evidence_of
from kit.loop import Loop, State


class Noisy(Loop):
    """Adds noise from all three generators to each batch; the model draws dropout from torch's."""

    def backward(self, x: Tensor, y: Tensor) -> None:
        """Scale by Python's generator and NumPy's."""
        super().backward(x * (1 + random.random() / 9 + np.random.random() / 9), y)  # noqa: NPY002


class Reseeded(Loop):
    """Seeds again at the start of each process and restores no generator, as nanoGPT #467 does."""

    def restore(self, state: State) -> None:
        """Pass over the generators."""
        state.pop("rng")
        super().restore(state)


class SeededOnce(Noisy):
    """Seeds only in the first process."""

    def seed(self) -> None:
        """Seed a run that does not resume."""
        if not self.job.resume:
            super().seed()

    def restore(self, state: State) -> None:
        """Pass over the generators."""
        state.pop("rng")
        super().restore(state)


class NumpyForgotten(Noisy):
    """Restores Python's and torch's generators, not NumPy's, and seeds only once."""

    def seed(self) -> None:
        """Seed a run that does not resume."""
        if not self.job.resume:
            super().seed()

    def restore(self, state: State) -> None:
        """Restore two of three."""
        super().restore(state | {"rng": state["rng"] | {"numpy": np.random.get_state()}})  # noqa: NPY002


def draws_more(draw: Callable[[], object]) -> type[Loop]:
    """Return a loop that draws once after its generators were restored."""

    class Draws(Noisy):
        def restore(self, state: State) -> None:
            super().restore(state)
            draw()

    return Draws


def draws_less(draw: Callable[[], object]) -> type[Loop]:
    """Return a loop that draws once between taking the generators' states and going on."""

    class Draws(Noisy):
        def save(self) -> None:
            super().save()
            draw()

    return Draws


class Validated(Loop):
    """Validates once right after a resume, as Lightning's sanity check does: the loader's iterator draws a seed."""

    def validate(self) -> None:
        """Look at all data in order, without gradients."""
        self.model.eval()
        with torch.no_grad():
            for x, y in DataLoader(TensorDataset(self.x, self.y), batch_size=20):
                self.loss(x, y)
        self.model.train()

    def restore(self, state: State) -> None:
        """Restore, then validate."""
        super().restore(state)
        self.validate()


class Epochs(Loop):
    """Reads a shuffling loader, with checkpoints at the ends of epochs; the loss is weighted by a count that is not saved."""

    save_every = 5
    count = 0

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield an epoch after the other."""
        loader = DataLoader(TensorDataset(self.x, self.y), batch_size=self.batch_size, shuffle=True)
        while True:
            yield from loader

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Weigh by the count."""
        self.count += 1
        return super().loss(x, y) * (1 + self.count)


def test_a_pass_that_begins_is_no_shift(lab: Lab) -> None:
    """A loader that draws its order when a resumed epoch begins drew it in the reference too: no generator is blamed."""
    verdict = lab.prove(Epochs.train, 7)
    assert (verdict.divergence.step, verdict.divergence.facet) == (6, "loss")
    assert [cause.code for cause in verdict.causes] == ["unknown"]


def test_seeded_again(lab: Lab) -> None:
    """A generator that starts again is named with the reference's step whose state it has, and the seeding line."""
    verdict = lab.prove(Reseeded.train, 7)
    assert_only(
        verdict, "rng-reseeded", step=5, facet="loss", said=["the one the reference had at step 1", "seeded at"]
    )
    assert "loop.py" in (verdict.causes[0].where or "")
    assert "numpy" not in verdict.causes[0].summary


def test_seeded_after_the_restore(lab: Lab) -> None:
    """A generator that was restored and then seeded is one that was seeded again."""

    class Late(Loop):
        def restore(self, state: State) -> None:
            super().restore(state)
            torch.manual_seed(77)

    verdict = lab.prove(Late.train, 7)
    assert_only(verdict, "rng-reseeded", step=5, facet="loss", said=["seeded at", "not restored afterwards"])
    assert "test_randomness.py" in (verdict.causes[0].where or "")


def test_all_three_not_restored(lab: Lab) -> None:
    """Generators that are neither seeded nor restored in the resumed process are named together."""
    verdict = lab.prove(SeededOnce.train, 7)
    assert_only(verdict, "rng-not-restored", step=5, facet="batch", said=["numpy: ", "python: ", "torch: "])


def test_one_of_three_not_restored(lab: Lab) -> None:
    """Only the generator that was left out is blamed."""
    verdict = lab.prove(NumpyForgotten.train, 7)
    assert_only(verdict, "rng-not-restored", step=5, facet="batch", said=["numpy: "])
    assert "python" not in evidence_of(verdict, "rng-not-restored")


@pytest.mark.parametrize(
    ("generator", "draw", "count"),
    [
        ("torch", lambda: torch.rand(1), 1),
        ("torch", lambda: [torch.rand(1) for _ in range(700)], 700),
        ("python", random.random, 2),
        ("python", lambda: [random.getrandbits(32) for _ in range(1000)], 1000),
        ("numpy", lambda: np.random.random(3), 6),  # noqa: NPY002
    ],
)
def test_drawn_from_after_the_restore(lab: Lab, generator: str, draw: Callable[[], object], count: int) -> None:
    """A generator that was drawn from after it was restored is so many 32-bit draws ahead."""
    verdict = lab.prove(draws_more(draw).train, 7)
    facet = "loss" if generator == "torch" else "batch"
    draws = f"{count:,} 32-bit draw{'s' if count > 1 else ''} ahead of"
    assert_only(
        verdict, "rng-shifted", step=5, facet=facet, said=[f"{generator}: at step 5 it is {draws}", "was restored"]
    )


@pytest.mark.parametrize(
    ("generator", "draw", "count"),
    [("torch", lambda: torch.rand(2), 2), ("python", random.random, 2), ("numpy", np.random.random, 2)],
)
def test_drawn_from_after_the_save(lab: Lab, generator: str, draw: Callable[[], object], count: int) -> None:
    """A generator that was drawn from between the save and the next step is so many draws behind after a resume."""
    verdict = lab.prove(draws_less(draw).train, 7)
    facet = "loss" if generator == "torch" else "batch"
    said = [f"{generator}: at step 5 it is {count} 32-bit draws behind"]
    assert_only(verdict, "rng-shifted", step=5, facet=facet, said=said)


def test_validation_draws_a_seed(lab: Lab) -> None:
    """A loader whose iterator drew from torch's generator between restore and first step is named with its line."""
    verdict = lab.prove(Validated.train, 7)
    assert_only(
        verdict, "rng-shifted", step=5, facet="loss", said=["32-bit draws ahead", "a data loader's iterator was made"]
    )
    assert "test_randomness.py" in evidence_of(verdict, "rng-shifted")


def test_other_validation_interval(lab: Lab) -> None:
    """Two runs that validate at other steps part where a loader's iterator was made in one of them only."""

    class EverySix(Validated):
        every = 6

        def update(self) -> None:
            super().update()
            if self.passes % self.every == 0:
                self.validate()

    class EveryFour(EverySix):
        every = 4

    verdict = lab.diff(EverySix.train, EveryFour.train)
    assert_only(
        verdict, "rng-shifted", step=5, facet="loss", said=["32-bit draws ahead", "a data loader's iterator was made"]
    )


def test_another_seed(lab: Lab) -> None:
    """Two runs with other seeds part at the first weights, and both seeds are told."""

    class Seven(Loop):
        def seed(self) -> None:
            torch.manual_seed(7)
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002

    verdict = lab.diff(Loop.train, Seven.train)
    assert_only(verdict, "environment-changed", step=1, facet="weights", said=["seed.torch: 0 in the reference, 7"])


def test_seeded_by_nobody(lab: Lab) -> None:
    """Two runs of a script that never seeds what it draws from are told which generator."""

    class Unseeded(Noisy):
        def seed(self) -> None:
            torch.manual_seed(0)

    verdict = lab.diff(Unseeded.train, Unseeded.train)
    assert verdict.divergence is not None
    assert (verdict.divergence.step, verdict.divergence.facet) == (1, "batch")
    assert [c.code for c in verdict.causes if c.confidence in {"certain", "likely"}] == ["rng-not-restored"]
    assert "never seeded" in verdict.causes[0].summary


def test_a_script_that_is_not_seeded_is_not_reproducible(lab: Lab) -> None:
    """A resume is not blamed where the interrupted leg differs before the kill."""

    class Unseeded(Noisy):
        def seed(self) -> None:
            torch.manual_seed(0)

    verdict = lab.prove(Unseeded.train, 7)
    assert verdict.verdict == "not-reproducible"
    assert verdict.divergence is not None
    assert verdict.divergence.step == 1


def test_ranks_share_a_stream(lab: Lab) -> None:
    """Two ranks that restore rank 0's generator are told to draw the same numbers."""

    class Ranked(Loop):
        """Dropout differs by rank, the rest is the same."""

        def __init__(self, job: Job) -> None:
            self.rank = int(os.environ["RANK"])
            own = job.out / str(self.rank)
            own.mkdir(exist_ok=True)
            super().__init__(Job(own, job.resume))

        def build(self) -> None:
            super().build()
            torch.manual_seed(100 + self.rank)

    class RankZeros(Ranked):
        def restore(self, state: State) -> None:
            zeros = self.job.out.parent / "0" / f"checkpoint-{state['passes']:05}.pt"
            super().restore(state | {"rng": torch.load(zeros, weights_only=False)["rng"]})

    assert lab.prove(Ranked.train, 7, ranks=2).verdict == "identical"
    verdict = lab.prove(RankZeros.train, 7, ranks=2)
    assert_only(verdict, "ranks-share-stream", step=5, facet="loss", said=["ranks 0 and 1", "different states"])
    assert verdict.divergence is not None
    assert verdict.divergence.rank == 1


def test_generators_that_nothing_draws_from_are_latent(lab: Lab) -> None:
    """A right script that seeds and restores only torch's generator is identical, with the others as latent."""

    class TorchOnly(Loop):
        def seed(self) -> None:
            torch.manual_seed(0)

        def state(self) -> State:
            return super().state() | {"rng": torch.get_rng_state()}

        def restore(self, state: State) -> None:
            torch_state = state.pop("rng")
            super().restore(state)
            torch.set_rng_state(torch_state)

    verdict = lab.prove(TorchOnly.train, 7)
    assert verdict.verdict == "identical"
    assert [latent.code for latent in verdict.latent] == ["rng-not-restored", "rng-not-restored"]


def test_a_seed_in_the_middle_is_no_fault(lab: Lab) -> None:
    """A script that seeds at each step resumes rightly without any generator saved."""

    class SeedsAtEachStep(Loop):
        def backward(self, x: Tensor, y: Tensor) -> None:
            torch.manual_seed(self.passes)
            super().backward(x, y)

        def restore(self, state: State) -> None:
            state.pop("rng")
            super().restore(state)

    assert lab.prove(SeedsAtEachStep.train, 7).verdict == "identical"
