"""What was forgotten is named, and nothing else is."""

import gc
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel

from bitproof.state import forgotten


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Let nothing of one test be alive in the next."""
    gc.collect()
    yield
    gc.collect()


def parts() -> dict[str, Any]:
    """Make a model and its optimizer."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}


def names(components: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what was found and why."""
    return [(finding.what, finding.why) for finding in forgotten(components)]


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another, with a state of its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner


class Window(torch.optim.Optimizer):
    """An optimizer around another, with no state of its own, as trainers make them."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    @property
    def state(self) -> Any:
        """Give the inner one's."""
        return self.inner.state

    @property
    def param_groups(self) -> Any:
        """Give the inner one's."""
        return self.inner.param_groups


class ForeignScheduler:
    """A scheduler of another library."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Have no state."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Take nothing."""


def test_a_scheduler_of_a_registered_optimizer_is_named() -> None:
    """A scheduler of torch and one of another library are named with their optimizer and what to do."""
    registered = parts()
    scheduler = schedules.StepLR(registered["optimizer"], 3)
    foreign = ForeignScheduler(registered["optimizer"])
    assert names(registered) == [
        ("ForeignScheduler", "sets the rates of the registered optimizer 'optimizer'"),
        ("StepLR", "sets the rates of the registered optimizer 'optimizer'"),
    ]
    assert forgotten(registered)[1].remedy == "register the StepLR, or delete it if it is not used any more"
    assert not forgotten(registered | {"a": scheduler, "b": foreign})


def test_schedulers_inside_a_registered_one_are_not_named() -> None:
    """SequentialLR and ChainedScheduler carry their inner schedulers; unregistered, all three are named."""
    registered = parts()
    optimizer = registered["optimizer"]
    inner = [schedules.LinearLR(optimizer), schedules.ChainedScheduler([schedules.StepLR(optimizer, 3)], optimizer)]
    outer = schedules.SequentialLR(optimizer, inner, [2])
    assert not forgotten(registered | {"scheduler": outer})
    assert len(forgotten(registered)) == 4


def test_a_wrapping_optimizer_and_one_that_was_left_out_are_named() -> None:
    """An outer optimizer with state is named where only the inner one is registered, and never the other way round."""
    registered = parts()
    outer = Wrapper(registered["optimizer"])
    assert names(registered) == [("Wrapper", "wraps the registered optimizer 'optimizer'")]
    assert not forgotten({"model": registered["model"], "optimizer": outer})
    del outer
    window = Window(registered["optimizer"])
    assert not forgotten(registered)
    del window
    assert names({"model": registered["model"]}) == [("SGD", "updates parameters of the registered 'model'")]


def test_an_average_of_a_registered_model_is_named() -> None:
    """An AveragedModel with the registered model's parameters is named; one of another model is not."""
    registered = parts()
    average = AveragedModel(registered["model"])
    other = AveragedModel(nn.Linear(7, 7))
    ((what, why),) = names(registered)
    assert what == "AveragedModel"
    assert why == "has the same parameters as the registered 'model', and a count of updates"
    assert not forgotten(registered | {"average": average})
    assert other is not None


def test_a_module_whose_parameters_are_trained_is_named() -> None:
    """A loss with weights that the registered optimizer updates is named; it may have buffers too."""
    registered = parts()
    head = nn.Bilinear(2, 2, 2)
    registered["optimizer"].add_param_group({"params": head.parameters()})
    assert names(registered) == [("Bilinear", "has parameters that the registered optimizer 'optimizer' updates")]
    assert not forgotten(registered | {"head": head})


def test_a_scaler_in_use_is_named() -> None:
    """An enabled scaler that has scaled a loss is named; a disabled one or one that was never used is not."""
    registered = parts()
    idle, off = torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu", enabled=False)
    off.scale(torch.ones(1))
    assert not forgotten(registered)
    idle.scale(torch.ones(1))
    assert [what for what, _ in names(registered)] == ["GradScaler"]
    assert not forgotten(registered | {"scaler": idle})


def test_what_a_registered_object_holds_is_its_own_business() -> None:
    """A scaler and a scheduler inside a registered object with a state dict are not named."""
    registered = parts()
    holder = ForeignScheduler(registered["optimizer"])
    holder.scaler = torch.amp.GradScaler("cpu")
    holder.scaler.scale(torch.ones(1))
    holder.inner = [schedules.StepLR(registered["optimizer"], 3)]
    assert not forgotten(registered | {"holder": holder})


def test_leftovers_and_strangers_are_not_named() -> None:
    """A scheduler that nothing reaches any more, and a second training in the process, are no findings."""
    registered, stranger = parts(), parts()
    stranger["scheduler"] = schedules.StepLR(stranger["optimizer"], 3)
    leftover: Any = schedules.StepLR(registered["optimizer"], 3)
    leftover.itself = leftover
    del leftover
    assert not forgotten(registered)


def test_looking_runs_no_code_of_what_it_meets() -> None:
    """An object that answers for another's class is not asked."""

    class Proxy:
        @property
        def __class__(self) -> type:
            raise AssertionError

    proxy = [Proxy()]
    assert not forgotten(parts())
    assert proxy


class Odd(random.Random):
    """A generator that keeps more than its base."""


def test_a_generator_of_an_unknown_class_is_named() -> None:
    """A generator whose whole state cannot be taken is named by its path, since it would not be saved."""
    ((what, why),) = names(parts() | {"noise": {"odd": Odd(1), "good": random.Random(1)}})
    assert what.endswith("Odd")
    assert why == "draws at noise['odd'], and the state of its class cannot be taken"
