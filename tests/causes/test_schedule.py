"""Learning rates that part at the seam or later, planted in real runs."""

import math
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from kit.live import Lab, assert_only, codes, evidence_of
from kit.loop import Loop, State


class FreshStepLR(Loop):
    """Restores the optimizer and forgets StepLR: the folk example (C2)."""

    def restore(self, state: State) -> None:
        """Pass over the scheduler."""
        super().restore(state | {"scheduler": None})


class FreshCosine(FreshStepLR):
    """Forgets a cosine."""

    def make_scheduler(self) -> Any:
        """Return a cosine."""
        return lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=20)


class FreshOneCycle(FreshStepLR):
    """Forgets a cycle, which moves the momentum too."""

    def make_scheduler(self) -> Any:
        """Return a cycle."""
        return lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.1, total_steps=40)


class Lambda(Loop):
    """Halves the rate every 3 steps by a function of the step."""

    def make_scheduler(self) -> Any:
        """Return the function of the step."""
        return lr_scheduler.LambdaLR(self.optimizer, lambda step: 0.5 ** (step // 3))


class LambdaBuiltBefore(Lambda):
    """Forgets a LambdaLR that was built before the optimizer was loaded: right for one step."""

    def restore(self, state: State) -> None:
        """Pass over the scheduler."""
        super().restore(state | {"scheduler": None})


class LambdaBuiltAfter(Lambda):
    """Builds a LambdaLR anew after the optimizer was loaded: wrong at once."""

    def restore(self, state: State) -> None:
        """Build the scheduler last."""
        super().restore(state)
        self.scheduler = self.make_scheduler()


class Plateau(Loop):
    """Drops the rate after 3 steps without progress."""

    def make_scheduler(self) -> Any:
        """Return the watcher of a metric that never gets better."""
        return lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=3, factor=0.1)

    def update(self) -> None:
        """Tell the scheduler the metric."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step(1.0)


class PlateauForgotten(Plateau):
    """Starts counting again, as Lightning #14699 did."""

    save_every = 3

    def restore(self, state: State) -> None:
        """Pass over the scheduler."""
        super().restore(state | {"scheduler": None})


class SchedulerOnly(Loop):
    """Loads the scheduler without the optimizer, as in pytorch #29697."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return an optimizer without moments."""
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def make_scheduler(self) -> Any:
        """Return a drop after step 5."""
        return lr_scheduler.MultiStepLR(self.optimizer, [5], gamma=0.1)

    def restore(self, state: State) -> None:
        """Pass over the optimizer."""
        super().restore(state | {"optimizer": self.optimizer.state_dict()})


class FromLastEpoch(Loop):
    """Builds a cosine at a later epoch over a new optimizer, as in pytorch #60265."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return an optimizer without moments."""
        return torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def make_scheduler(self) -> Any:
        """Return the cosine from its start."""
        return lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=100)

    def restore(self, state: State) -> None:
        """Build the cosine in the middle."""
        super().restore(state)
        self.optimizer = self.make_optimizer()
        self.optimizer.param_groups[0]["initial_lr"] = 1e-3
        self.scheduler = lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=100, last_epoch=self.passes - 1)


class SavedTooSoon(Loop):
    """Saves between the optimizer's step and the scheduler's, as in Lightning #1772."""

    def update(self) -> None:
        """Save in between."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.passes % self.save_every == 0:
            super().save()
        self.scheduler.step()

    def save(self) -> None:
        """It is done in the update."""


class WarmUp(Loop):
    """Starts at rate 0: the first step changes no weight."""

    def make_scheduler(self) -> Any:
        """Return a warm-up, then a cosine by hand."""
        return lr_scheduler.LambdaLR(self.optimizer, lambda n: n / 3 if n < 3 else math.cos(n / 10))


@pytest.mark.parametrize(
    ("loop", "kill", "step", "said"),
    [
        (FreshStepLR, 7, 6, ["equal for 1 step", "lr: 0.02 where the reference has 0.01", "no scheduler"]),
        (FreshCosine, 7, 6, ["equal for 1 step"]),
        (FreshOneCycle, 7, 6, ["equal for 1 step"]),
        (LambdaBuiltBefore, 7, 6, ["equal for 1 step", "lr: 0.02 where the reference has 0.01"]),
        (PlateauForgotten, 4, 6, ["equal for 2 steps"]),
        (SavedTooSoon, 7, 6, ["1 step late", "a scheduler's state was loaded"]),
    ],
)
def test_right_at_the_seam_and_wrong_later(lab: Lab, loop: type[Loop], kill: int, step: int, said: list[str]) -> None:
    """A schedule that keeps the rate at the seam is found at the step where it leaves the reference's."""
    verdict = lab.prove(loop.train, kill)
    assert_only(verdict, "schedule-restarted", step=step, facet="hyperparameters", said=said)


@pytest.mark.parametrize("loop", [LambdaBuiltAfter, SchedulerOnly, FromLastEpoch])
def test_wrong_at_the_seam(lab: Lab, loop: type[Loop]) -> None:
    """A rate that is wrong in the first resumed step is a setting that was not restored, with both rates."""
    kill = 7 if loop is not SchedulerOnly else 9
    verdict = lab.prove(loop.train, kill)
    step = 5 if kill == 7 else 9
    assert_only(verdict, "hyperparameters-not-restored", step=step, facet="hyperparameters", said=["group0.lr: "])
    assert codes(verdict) == ["hyperparameters-not-restored"]


def test_without_optimizer_and_scheduler_the_optimizer_is_named(lab: Lab) -> None:
    """Where both are forgotten the optimizer's state comes first, and the other facet is said."""

    class Both(FreshStepLR):
        save_every = 6

        def restore(self, state: State) -> None:
            super().restore(state | {"optimizer": self.optimizer.state_dict()})

    verdict = lab.prove(Both.train, 7)
    assert_only(verdict, "optimizer-not-restored", step=7, facet="optimizer", said=["hyperparameters"])


def test_counter_seen_in_the_checkpoint_before_the_rates_part(lab: Lab) -> None:
    """What was saved before the rates part is told as evidence, and the rates are the divergence."""

    class Early(FreshStepLR):
        save_every = 2

    verdict = lab.prove(Early.train, 7)
    assert_only(verdict, "schedule-restarted", step=11, facet="hyperparameters", said=["step 8", "scheduler."])


def test_counter_seen_where_the_rates_never_part(lab: Lab) -> None:
    """A schedule's counter that differs in the checkpoint is told as such although the run ends before the next drop."""

    class Short(FreshStepLR):
        total = 9
        save_every = 2

    verdict = lab.prove(Short.train, 7)
    assert_only(verdict, "schedule-restarted", step=8, facet="saved", said=["scheduler.last_epoch"])


@pytest.mark.parametrize("kill", [1, 2, 3, 5])
def test_warm_up_from_nought_joins_at_the_right_seam(lab: Lab, kill: int) -> None:
    """States that are equal before and after a step at rate 0 do not mislead the alignment."""

    class Often(WarmUp):
        save_every = 1

        def make_optimizer(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.model.parameters(), lr=0.1)

    verdict = lab.prove(Often.train, kill)
    assert verdict.verdict == "identical", verdict
    assert verdict.seams[0].resumed_at is not None
    assert verdict.seams[0].resumed_at.step == kill - 1
    assert evidence_of(verdict, "unknown") == ""
