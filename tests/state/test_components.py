"""Parts of a run: captured whole, restored in place, each reported."""

import collections
import random
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from bitproof.state import StateVersionError, UnsupportedStateError, capture, decode, encode, restore, restore_part
from bitproof.state.components import Report


def stored(components: Mapping[str, Any], **options: Any) -> Any:
    """Return the state of parts as it would come from a file."""
    document, tensors = encode(capture(components, **options))
    return decode(document, {name: tensor.clone() for name, tensor in tensors.items()})


def assert_complete(report: Report) -> None:
    """Fail with the parts that were not restored."""
    assert report.complete, report.parts


class Net(nn.Module):
    """A small model with dropout, batch statistics, a tied weight and a buffer that is not persistent."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4, dtype=dtype)
        self.norm = nn.BatchNorm1d(4, dtype=dtype)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Linear(4, 4, dtype=dtype)
        self.out.weight = self.inner.weight
        self.register_buffer("offset", torch.zeros(4, dtype=dtype), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it, and move the buffer."""
        x = self.out(self.drop(self.norm(self.inner(x)))) + self.offset
        self.offset.add_(0.01)
        return x


def train(model: nn.Module, optimizer: Any, scheduler: Any, steps: int) -> None:
    """Train some steps on random data."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        if isinstance(scheduler, schedules.ReduceLROnPlateau):
            scheduler.step(1.0)
        elif scheduler is not None:
            scheduler.step()


def bits(model: nn.Module) -> list[bytes]:
    """Return the bytes of all parameters and buffers."""
    return [t.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for t in (*model.parameters(), *model.buffers())]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adam-tensor-lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), capturable=False, foreach=False),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "multistep": lambda o: schedules.MultiStepLR(o, [3, 7]),
    "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=3),
    "sequential": lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o), schedules.StepLR(o, 2)], [5]),
    "lambda": lambda o: schedules.LambdaLR(o, lambda step: 0.9**step),
    "onecycle": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=40),
    "cosine-restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 3),
    "chained": lambda o: schedules.ChainedScheduler([schedules.StepLR(o, 3), schedules.ExponentialLR(o, 0.9)], o),
    "cyclic": lambda o: schedules.CyclicLR(o, 0.001, 0.1, step_size_up=3),
    "swalr": lambda o: SWALR(o, 0.05, anneal_epochs=4),
}


def build(optimizer: str, schedule: str | None, seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Make the parts of a run from a seed."""
    torch.manual_seed(seed)
    model = Net(dtype)
    made = OPTIMIZERS[optimizer](model.parameters())
    parts = {"model": model, "optimizer": made}
    return parts | ({"scheduler": SCHEDULES[schedule](made)} if schedule else {})


def continue_from(parts: Mapping[str, Any], steps: int) -> tuple[list[bytes], list[Any]]:
    """Train on and return every bit that came of it."""
    train(parts["model"], parts["optimizer"], parts.get("scheduler"), steps)
    return bits(parts["model"]), [group["lr"] for group in parts["optimizer"].param_groups]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_goes_on_bit_for_bit_with_each_optimizer(optimizer: str) -> None:
    """A fresh run into which a state is restored ends with the same bits as the one that went on."""
    parts = build(optimizer, None, 0)
    train(parts["model"], parts["optimizer"], None, 5)
    saved = stored(parts)
    expected = continue_from(parts, 5)
    fresh = build(optimizer, None, 1)
    assert_complete(restore(fresh, saved))
    assert continue_from(fresh, 5) == expected


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("stop", [0, 4, 6])
def test_training_goes_on_bit_for_bit_with_each_schedule(schedule: str, stop: int) -> None:
    """Rates follow the uninterrupted ones to the end, wherever the schedule was stopped."""
    parts = build("sgd", schedule, 0)
    train(parts["model"], parts["optimizer"], parts["scheduler"], stop)
    saved = stored(parts)
    expected = continue_from(parts, 8)
    fresh = build("sgd", schedule, 1)
    with warnings.catch_warnings():
        # torch cannot know that the optimizer has stepped in the process before.
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        assert_complete(restore(fresh, saved))
        assert continue_from(fresh, 8) == expected


def test_a_save_between_optimizer_and_scheduler_step_keeps_the_sequence() -> None:
    """A state taken after the optimizer's step and before the scheduler's goes on with the scheduler's."""
    parts = build("sgd", "multistep", 0)
    train(parts["model"], parts["optimizer"], parts["scheduler"], 2)
    train(parts["model"], parts["optimizer"], None, 1)
    saved = stored(parts)
    parts["scheduler"].step()
    expected = continue_from(parts, 3)
    fresh = build("sgd", "multistep", 1)
    assert_complete(restore(fresh, saved))
    fresh["scheduler"].step()
    assert continue_from(fresh, 3) == expected


def test_saving_changes_nothing() -> None:
    """A run that is captured at each step ends with the same bits as one that never is."""
    parts, control = build("adamw", "plateau", 0), None
    for _ in range(5):
        stored(parts)
        train(parts["model"], parts["optimizer"], parts["scheduler"], 1)
    control = build("adamw", "plateau", 0)
    train(control["model"], control["optimizer"], control["scheduler"], 5)
    assert bits(parts["model"]) == bits(control["model"])


def test_parameters_and_buffers_keep_their_identity() -> None:
    """A loss that holds the model's weight sees the restored values: same objects, still tied."""
    parts = build("sgd", None, 0)
    saved = stored(parts)
    fresh = build("sgd", None, 1)
    held = [*fresh["model"].parameters(), *fresh["model"].buffers()]
    assert_complete(restore(fresh, saved))
    assert all(a is b for a, b in zip(held, [*fresh["model"].parameters(), *fresh["model"].buffers()], strict=True))
    assert fresh["model"].out.weight is fresh["model"].inner.weight
    assert bits(fresh["model"]) == bits(parts["model"])
    fresh["model"].inner.weight.data.zero_()
    assert stored(parts)["parts"]["model"]["state"]["parameters"]["inner.weight"].any()


def test_gradients_of_an_open_window_come_back_and_none_stays_none() -> None:
    """Accumulated gradients survive with their bits; a parameter without one has none again."""
    parts = build("sgd", None, 0)
    parts["model"].out.bias.requires_grad_(requires_grad=False)
    parts["model"](torch.randn(8, 4)).sum().backward()
    saved = stored(parts)
    fresh = build("sgd", None, 1)
    fresh["model"].out.bias.grad = torch.ones(4)
    assert_complete(restore(fresh, saved))
    assert torch.equal(fresh["model"].inner.weight.grad, parts["model"].inner.weight.grad)
    assert fresh["model"].out.bias.grad is None
    assert not fresh["model"].out.bias.requires_grad
    assert "gradients" not in stored(parts, gradients=False)["parts"]["model"]["state"]


def test_mode_and_buffers_that_are_not_persistent_come_back() -> None:
    """Train or eval mode of each submodule, and a buffer that state_dict() leaves out, are restored."""
    parts = build("sgd", None, 0)
    parts["model"].norm.eval()
    parts["model"].offset.fill_(7)
    fresh = build("sgd", None, 1)
    assert_complete(restore(fresh, stored(parts)))
    assert fresh["model"].training
    assert not fresh["model"].norm.training
    assert fresh["model"].offset.tolist() == [7] * 4


class Lazy(nn.Module):
    """Has a buffer that is None until it is first used."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", None)


def test_a_buffer_that_is_none_until_it_is_used_comes_back() -> None:
    """A buffer that was made later is made by the restore, and one that is None again is None."""
    used, fresh = Lazy(), Lazy()
    used.seen = torch.tensor([1.0, 2.0])
    empty = stored({"model": Lazy()})
    assert_complete(restore({"model": fresh}, stored({"model": used})))
    assert fresh.seen.tolist() == [1, 2]
    assert "seen" in dict(fresh.named_buffers())
    assert_complete(restore({"model": fresh}, empty))
    assert fresh.seen is None


def test_wide_moments_of_a_narrow_parameter_and_wide_counters_survive() -> None:
    """float32 moments of a bfloat16 parameter, an int64 counter above 2^24 and a float64 keep dtype and bits."""
    parts = build("sgd", None, 0, torch.bfloat16)
    weight = parts["model"].inner.weight
    exact = {
        "momentum_buffer": None,
        "master": torch.randn(4, 4) * 1e-6,
        "count": torch.tensor(2**24 + 1, dtype=torch.int64),
        "double": torch.tensor(0.1, dtype=torch.float64),
        "mode": "fast",
        "table": np.array([1, 2**40]),
        "nested": {"list": [torch.tensor([1.0 + 2**-20])]},
    }
    parts["optimizer"].state[weight] = dict(exact)
    fresh = build("sgd", None, 1, torch.bfloat16)
    assert_complete(restore(fresh, stored(parts)))
    state = fresh["optimizer"].state[fresh["model"].inner.weight]
    assert state["master"].dtype is torch.float32
    assert torch.equal(state["master"], exact["master"])
    assert state["count"].item() == 2**24 + 1
    assert state["count"].dtype is torch.int64
    assert state["double"].dtype is torch.float64
    assert state["mode"] == "fast"
    assert state["table"].tolist() == [1, 2**40]
    assert state["nested"]["list"][0].item() == 1.0 + 2**-20


def test_optimizer_groups_and_moments_keep_their_identity() -> None:
    """What a scheduler or a wrapper holds of an optimizer stays what it was, and moments are overwritten in place."""
    parts = build("adamw", "multistep", 0)
    train(parts["model"], parts["optimizer"], parts["scheduler"], 2)
    saved = stored(parts)
    optimizer, weight = parts["optimizer"], parts["model"].inner.weight
    groups, group, state = optimizer.param_groups, optimizer.param_groups[0], optimizer.state
    moment, params = state[weight]["exp_avg"], group["params"]
    train(parts["model"], optimizer, parts["scheduler"], 2)
    assert_complete(restore(parts, saved))
    assert optimizer.param_groups is groups
    assert groups[0] is group
    assert group["params"] is params
    assert optimizer.state is state
    assert state[weight]["exp_avg"] is moment
    assert torch.equal(moment, saved["parts"]["optimizer"]["state"]["state"]["model.inner.weight"]["exp_avg"])


def test_a_restored_optimizer_shares_nothing_with_the_saved_tree() -> None:
    """Training after a restore leaves the tree that it came from alone (loading alone makes a shallow copy)."""
    parts = build("adamw", None, 0)
    train(parts["model"], parts["optimizer"], None, 2)
    saved = stored(parts)
    before = encode(saved)
    kept = {name: tensor.clone() for name, tensor in before.tensors.items()}
    fresh = build("adamw", None, 1)
    assert_complete(restore(fresh, saved))
    train(fresh["model"], fresh["optimizer"], None, 3)
    after = encode(saved)
    assert after.document == before.document
    assert all(torch.equal(tensor, after.tensors[name]) for name, tensor in kept.items())


def grouped(order: str, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Make a model and an optimizer with two groups in an order, each with its own rate."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = {
        "a": {"params": list(model[0].parameters()), "lr": 0.1},
        "b": {"params": list(model[1].parameters())[::-1], "lr": 0.2},
    }
    return model, torch.optim.SGD([groups[name] for name in order], lr=1.0, momentum=0.9)


def test_groups_declared_in_another_order_are_matched_by_name() -> None:
    """Moments and rates go to their own parameters though groups and parameters are declared the other way round."""
    model, optimizer = grouped("ab")
    model(torch.randn(3, 2)).sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.01
    saved = stored({"model": model, "optimizer": optimizer})
    other, swapped = grouped("ba", 1)
    swapped.param_groups[0]["params"].reverse()
    report = restore({"model": other, "optimizer": swapped}, saved)
    assert_complete(report)
    assert report.notes == (
        "optimizer: its groups were declared in another order: the live ones are the saved ones [1, 0]",
    )
    assert [group["lr"] for group in swapped.param_groups] == [0.2, 0.01]
    for old, new in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(optimizer.state[old]["momentum_buffer"], swapped.state[new]["momentum_buffer"])


def test_a_schedule_over_reordered_groups_is_refused() -> None:
    """A scheduler keeps its rates by position, so it is refused by name where groups changed places."""
    model, optimizer = grouped("ab")
    saved = stored({"model": model, "optimizer": optimizer, "scheduler": schedules.StepLR(optimizer, 1)})
    other, swapped = grouped("ba")
    report = restore({"model": other, "optimizer": swapped, "scheduler": schedules.StepLR(swapped, 1)}, saved)
    assert [(part.name, part.status) for part in report.parts][:3] == [
        ("model", "restored"),
        ("optimizer", "restored"),
        ("scheduler", "refused"),
    ]
    assert "groups were declared in another order" in report.of("refused")[0].detail


def test_regrouped_parameters_are_refused_by_name() -> None:
    """An optimizer over other groups or parameters is refused with each name and both places, and left alone."""
    model, optimizer = grouped("ab")
    saved = stored({"model": model, "optimizer": optimizer})
    one = torch.optim.SGD(model.parameters(), lr=3.0)
    (part,) = restore({"model": model, "optimizer": one}, saved).of("refused")
    assert "model.1.weight: saved in group 1, live in group 0" in part.detail
    assert one.param_groups[0]["lr"] == 3.0
    some = torch.optim.SGD([{"params": model[0].parameters()}, {"params": [model[1].weight]}])
    (part,) = restore({"model": model, "optimizer": some}, saved).of("refused")
    assert "model.1.bias: saved, not in the live optimizer" in part.detail


class Lookahead(torch.optim.Optimizer):
    """A wrapping optimizer with slow weights, a counter of its own, and the inner one's groups."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner
        self.param_groups = inner.param_groups
        self.calls = 0

    def step(self) -> None:
        """Step the inner one; every second time pull the weights back."""
        self.inner.step()
        self.calls += 1
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.detach().clone())
                if self.calls % 2 == 0:
                    slow.lerp_(p.detach(), 0.5)
                    p.data.copy_(slow)


@pytest.mark.parametrize("stop", [2, 3])
def test_a_nested_optimizer_goes_on_bit_for_bit(stop: int) -> None:
    """Inner moments, outer state, the outer counter and the shared groups all come back."""

    def make(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = Net()
        inner = torch.optim.Adam(model.parameters(), lr=0.01)
        return {"model": model, "optimizer": Lookahead(inner), "scheduler": schedules.StepLR(inner, 2)}

    parts = make(0)
    train(parts["model"], parts["optimizer"], parts["scheduler"], stop)
    saved = stored(parts)
    expected = continue_from(parts, 5)
    fresh = make(1)
    assert_complete(restore(fresh, saved))
    assert fresh["optimizer"].param_groups[0] is fresh["optimizer"].inner.param_groups[0]
    assert continue_from(fresh, 5) == expected


class Modal(torch.optim.SGD):
    """An optimizer whose eval mode changes the weights, and whose mode is not in its state dict."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.evaluating = False

    def swap(self) -> None:
        """Change the mode, and the weights with it."""
        self.evaluating = not self.evaluating
        for group in self.param_groups:
            for p in group["params"]:
                p.data.mul_(0.5 if self.evaluating else 2.0)


@pytest.mark.parametrize("evaluating", [False, True])
def test_an_optimizer_with_a_mode_comes_back_in_it(evaluating: bool) -> None:
    """A state saved in either mode goes on from that mode with the same bits."""
    model = nn.Linear(2, 2)
    optimizer = Modal(model.parameters())
    if evaluating:
        optimizer.swap()
    saved = stored({"model": model, "optimizer": optimizer})
    fresh = nn.Linear(2, 2)
    made = Modal(fresh.parameters())
    assert_complete(restore({"model": fresh, "optimizer": made}, saved))
    assert made.evaluating is evaluating
    assert bits(fresh) == bits(model)


class Halving(torch.optim.SGD):
    """An optimizer that stores its state in half precision when it loads."""

    def load_state_dict(self, state_dict: Any) -> None:
        """Keep the state elsewhere, halved."""
        super().load_state_dict(state_dict)
        self.kept = {k: v["momentum_buffer"].half() for k, v in state_dict["state"].items()}

    def state_dict(self) -> Any:
        """Give what is kept elsewhere."""
        given = super().state_dict()
        if hasattr(self, "kept"):
            given["state"] = {k: {"momentum_buffer": v} for k, v in self.kept.items()}
        return given


def test_an_optimizer_that_changes_what_it_loads_is_refused() -> None:
    """A lossy load is found by comparing bits, and named."""
    model = nn.Linear(2, 2)
    optimizer = Halving(model.parameters(), momentum=0.9)
    model(torch.randn(1, 2)).sum().backward()
    optimizer.step()
    parts = {"model": model, "optimizer": optimizer}
    (part,) = restore(parts, stored(parts)).of("refused")
    assert "saved float32 of shape [2, 2], live float16 of shape [2, 2]" in part.detail


def test_parameters_of_no_module_are_carried_by_their_optimizer() -> None:
    """A loose tensor that an optimizer updates keeps value, gradient and moments."""

    def make(value: float) -> tuple[nn.Parameter, torch.optim.Optimizer]:
        loose = nn.Parameter(torch.full((2,), value))
        return loose, torch.optim.SGD([loose], lr=0.1, momentum=0.9)

    loose, optimizer = make(1.0)
    loose.square().sum().backward()
    optimizer.step()
    fresh, made = make(5.0)
    assert_complete(restore({"optimizer": made}, stored({"optimizer": optimizer})))
    assert torch.equal(fresh, loose)
    assert torch.equal(fresh.grad, loose.grad)
    assert torch.equal(made.state[fresh]["momentum_buffer"], optimizer.state[loose]["momentum_buffer"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: setattr(m, "inner", nn.Linear(4, 5)),
            "parameter inner.weight: saved float32 of shape [4, 4], live float32 of shape [5, 4]",
        ),
        (lambda m: m.double(), "saved float32 of shape [4, 4], live float64 of shape [4, 4]"),
        (lambda m: delattr(m, "norm"), "parameter 'norm.bias', 'norm.weight': saved, not live"),
        (lambda m: setattr(m, "more", nn.Linear(1, 1)), "parameter 'more.bias', 'more.weight': live, not saved"),
        (
            lambda m: setattr(m.out, "weight", nn.Parameter(torch.ones(4, 4))),
            "out.weight: saved tied to inner.weight, live a parameter of its own",
        ),
    ],
    ids=["shape", "dtype", "missing", "unexpected", "tie"],
)
def test_a_model_that_does_not_fit_is_refused_and_left_alone(change: Any, message: str) -> None:
    """Names, shapes, dtypes and ties are checked before anything is written; both values are in the message."""
    saved = stored({"model": Net()})
    torch.manual_seed(1)
    other = Net()
    change(other)
    before = bits(other)
    (part,) = restore({"model": other}, saved).of("refused")
    assert message in part.detail
    assert bits(other) == before


class OptimizedModule(nn.Module):
    """Wraps a module as torch.compile does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


def test_wrapper_prefixes_leave_no_trace_in_names() -> None:
    """A state saved from a compiled or data-parallel module fits the plain one, and the other way round."""
    torch.manual_seed(0)
    plain = Net()
    torch.manual_seed(1)
    wrapped = OptimizedModule(nn.DataParallel(Net()))
    plain.eval()
    saved = stored({"model": plain, "optimizer": torch.optim.SGD(plain.parameters())})
    assert_complete(restore({"model": wrapped, "optimizer": torch.optim.SGD(wrapped.parameters())}, saved))
    assert bits(wrapped) == bits(plain)
    assert not wrapped.training
    assert not wrapped._orig_mod.training
    again = stored({"model": wrapped})["parts"]["model"]["state"]["parameters"]
    assert list(again) == list(saved["parts"]["model"]["state"]["parameters"])


def test_a_module_that_is_called_module_keeps_its_name() -> None:
    """Only real wrappers lose their prefix, so a key that does not fit is an error and never left out."""
    own = nn.Module()
    own.module = nn.Linear(1, 1)
    saved = stored({"model": own})
    assert list(saved["parts"]["model"]["state"]["parameters"]) == ["module.weight", "module.bias"]
    (part,) = restore({"model": own.module}, saved).of("refused")
    assert "parameter 'bias', 'weight': live, not saved" in part.detail
    assert "parameter 'module.bias', 'module.weight': saved, not live" in part.detail


class Scaled(nn.Module):
    """A module with a plain attribute that data decides."""

    def __init__(self, mean: float) -> None:
        super().__init__()
        self.mean = mean
        self.table = torch.full((2,), mean)
        self.weight = nn.Parameter(torch.ones(1))


def test_plain_attributes_that_differ_are_named() -> None:
    """A number and a tensor that are not registered are noted with both values, and left as they are."""
    live = Scaled(2.0)
    report = restore({"model": live}, stored({"model": Scaled(1.0)}))
    assert_complete(report)
    assert live.mean == 2.0
    assert any(
        "['mean'] is a plain attribute that differs and was left as it is (saved 1.0, live 2.0)" in n
        for n in report.notes
    )
    assert any("['table']" in note for note in report.notes)
    assert not restore({"model": live}, stored({"model": live})).notes


class Counting(nn.Module):
    """A module with extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def get_extra_state(self) -> Any:
        """Give the calls."""
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        """Take the calls."""
        self.calls = state["calls"]


def test_extra_state_of_a_module_comes_back() -> None:
    """What get_extra_state gives is saved and given to set_extra_state."""
    old, new = Counting(), Counting()
    old.calls.append(3)
    assert_complete(restore({"model": new}, stored({"model": old})))
    assert new.calls == [3]


def test_an_averaged_model_and_the_raw_one_both_come_back() -> None:
    """Averages, their count and the raw weights survive, so that neither starts from the other."""
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(3):
        model.weight.data.add_(1)
        average.update_parameters(model)
    saved = stored({"model": model, "average": average})
    model.weight.data.add_(1)
    average.update_parameters(model)
    fresh = nn.Linear(2, 2)
    other = AveragedModel(fresh, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    assert_complete(restore({"model": fresh, "average": other}, saved))
    assert other.n_averaged == 3
    fresh.weight.data.add_(1)
    other.update_parameters(fresh)
    assert bits(other) == bits(average)


def scales(scaler: Any, steps: int) -> list[float]:
    """Run a scaler on finite gradients and return the scale after each step."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    seen = []
    for _ in range(steps):
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append(scaler.get_scale())
    return seen


def make_scaler(**options: Any) -> torch.amp.GradScaler:
    """Make a scaler that grows every third step."""
    return torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=3, **options)


def test_a_scaler_made_after_the_restore_goes_on_at_once() -> None:
    """Scale and growth counter survive, also in a scaler that is made later and first asked to unscale."""
    scaler = make_scaler()
    scales(scaler, 2)
    saved = stored({"scaler": scaler})
    expected = scales(scaler, 6)
    assert expected == [2048, 2048, 2048, 4096, 4096, 4096]
    report = restore({}, saved)
    assert [part.detail for part in report.of("absent")] == [
        "a GradScaler was saved, nothing of this name is registered here"
    ]
    late = make_scaler()
    assert_complete(restore_part("scaler", {"scaler": late}, saved))
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    late.unscale_(optimizer)
    assert weight.grad.item() == 1 / 1024
    fresh = make_scaler()
    assert_complete(restore_part("scaler", {"scaler": fresh}, saved))
    assert scales(fresh, 6) == expected


def test_a_scaler_that_is_disabled_now_is_refused() -> None:
    """A disabled scaler would take any state without a word; it is refused, and so is the reverse."""
    enabled = stored({"scaler": make_scaler()})
    (part,) = restore({"scaler": make_scaler(enabled=False)}, enabled).of("refused")
    assert part.detail == "it was enabled when it was saved and is disabled now; make it as it was"
    disabled = stored({"scaler": make_scaler(enabled=False)})
    assert restore({"scaler": make_scaler()}, disabled).of("refused")
    assert_complete(restore({"scaler": make_scaler(enabled=False)}, disabled))


def test_metrics_come_back_registered_or_inside_a_model() -> None:
    """States of metrics, lists among them, and their counts survive."""
    torchmetrics = pytest.importorskip("torchmetrics")

    def make() -> dict[str, Any]:
        model = nn.Linear(1, 1)
        model.loss = torchmetrics.MeanMetric()
        return {"model": model, "all": torchmetrics.CatMetric()}

    old, new = make(), make()
    for value in (1.0, 2.0, 6.0):
        old["model"].loss.update(torch.tensor(value))
        old["all"].update(torch.tensor([value]))
    assert_complete(restore(new, stored(old)))
    assert new["model"].loss.compute() == 3.0
    assert new["all"].compute().tolist() == [1, 2, 6]
    assert new["all"].update_count == 3


class Loader:
    """A loader that keeps its position, and counts from it."""

    def __init__(self) -> None:
        self.position = {"index": 0}

    def __iter__(self) -> Any:
        """Yield from where it is."""
        yield self.position["index"]

    def state_dict(self) -> Any:
        """Give the live position."""
        return self.position

    def load_state_dict(self, state: Any) -> None:
        """Keep what is given."""
        self.position = state


def test_anything_with_a_state_dict_comes_back_and_keeps_nothing_of_the_tree() -> None:
    """A loader's position is restored; that the loader keeps and changes what it was given reaches no saved tree."""
    loader = Loader()
    loader.position["index"] = 7
    saved = stored({"loader": loader})
    fresh = Loader()
    assert_complete(restore({"loader": fresh}, saved))
    assert list(fresh) == [7]
    fresh.position["index"] = 9
    assert saved["parts"]["loader"]["state"] == {"index": 7}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_torchdata_loader_goes_on_at_its_batch() -> None:
    """A stateful loader gives the batches that the interrupted one would have given."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def make() -> Any:
        return stateful(list(range(20)), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(0))

    loader = make()
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    saved = stored({"loader": loader})
    expected = [batch.tolist() for batch in batches]
    fresh = make()
    assert_complete(restore({"loader": fresh}, saved))
    assert [batch.tolist() for batch in fresh] == expected


class Walk:
    """An environment with a generator, a position and a memory."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.position = 0
        self.memory: collections.deque[int] = collections.deque(maxlen=5)
        self.rule = lambda x: x

    def step(self) -> int:
        """Take a step."""
        self.position += int(self.rng.integers(-1, 2))
        self.memory.append(self.position)
        return self.position


def test_plain_objects_and_plain_data_come_back_in_place() -> None:
    """An environment, a replay memory, counters and a number are restored; who holds them sees it."""
    env, history, replay = Walk(), {"best": 1.0, "wait": [0]}, collections.deque([1, 2], maxlen=3)
    for _ in range(10):
        env.step()
    saved = stored({"env": env, "history": history, "replay": replay, "epoch": 4})
    expected = [env.step() for _ in range(10)]
    other, empty, buffer = Walk(), {"best": 0.0, "wait": [9, 9]}, collections.deque([0], maxlen=3)
    rng, memory, wait = other.rng, other.memory, empty["wait"]
    report = restore({"env": other, "history": empty, "replay": buffer, "epoch": 0}, saved)
    assert_complete(report)
    assert other.rng is rng
    assert other.memory is memory
    assert [other.step() for _ in range(10)] == expected
    assert empty == {"best": 1.0, "wait": [0]}
    assert empty["wait"] is wait
    assert buffer == collections.deque([1, 2], maxlen=3)
    assert dict(report.values) == {"epoch": 4}


def test_generators_are_parts_too() -> None:
    """A registered generator is put back in place, and one of another kind is refused by both kinds."""
    parts = {"noise": np.random.default_rng(1), "order": torch.Generator().manual_seed(2), "shuffle": random.Random(3)}
    saved = stored(parts)
    expected = [parts["noise"].random(), torch.rand(1, generator=parts["order"]).item(), parts["shuffle"].random()]
    assert_complete(restore(parts, saved))
    assert [
        parts["noise"].random(),
        torch.rand(1, generator=parts["order"]).item(),
        parts["shuffle"].random(),
    ] == expected
    (part, _) = restore(parts | {"noise": np.random.Generator(np.random.MT19937(1))}, saved).of("refused")
    assert "was a PCG64 when it was saved and is a MT19937 now" in part.detail


class Broken:
    """Something whose load fails."""

    def state_dict(self) -> Any:
        """Give something."""
        return {"a": 1}

    def load_state_dict(self, state: Any) -> None:
        """Fail."""
        raise KeyError(*state)


def test_a_part_that_fails_does_not_keep_others_from_being_restored() -> None:
    """Each part is tried and reported: one fails, one is gone, one is new, the others are restored."""
    broken, kept = Broken(), [1]
    saved = stored({"a": broken, "b": kept, "gone": [2]})
    kept[0] = 5
    torch.manual_seed(7)
    report = restore({"a": broken, "b": kept, "new": [3]}, saved)
    assert kept == [1]
    assert {part.name: part.status for part in report.parts} == {
        "a": "refused",
        "b": "restored",
        "gone": "absent",
        "new": "absent",
        "generator python": "restored",
        "generator numpy": "restored",
        "generator torch": "restored",
        "generator cuda": "restored",
    }
    assert report.of("refused")[0].detail == "KeyError: 'a'"
    assert not report.complete


def test_what_cannot_be_a_part_is_refused_by_name() -> None:
    """A part without a state, and a lazy model before its first batch, are refused with what to do."""
    with pytest.raises(
        UnsupportedStateError, match="loss_fn: a function has no state that can be taken; give it state_dict"
    ):
        capture({"loss_fn": lambda: 1})
    with pytest.raises(
        UnsupportedStateError, match="have no value yet; run one batch through it before the first save"
    ):
        capture({"model": nn.LazyLinear(2)})
    with pytest.raises(
        UnsupportedStateError, match=r"\['env'\]\['state'\]\['model'\] is a torch.nn.*register the module"
    ):
        encode(capture({"env": type("Env", (), {"__init__": lambda self: setattr(self, "model", nn.Linear(1, 1))})()}))
    with pytest.raises(StateVersionError, match="has layout 2; this bitproof reads layout 1"):
        restore({}, stored({}) | {"layout": 2})


@pytest.mark.parametrize("evaluating", [False, True])
def test_a_schedule_free_optimizer_goes_on_from_either_mode(evaluating: bool) -> None:
    """A real optimizer that holds two sets of weights goes on bit for bit, saved in train or in eval mode."""
    schedulefree = pytest.importorskip("schedulefree")

    def make(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = Net()
        optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=0.01, warmup_steps=3)
        optimizer.train()
        return {"model": model, "optimizer": optimizer}

    parts = make(0)
    train(parts["model"], parts["optimizer"], None, 5)
    if evaluating:
        parts["optimizer"].eval()
    saved = stored(parts)
    parts["optimizer"].train()
    expected = continue_from(parts, 3)
    fresh = make(1)
    assert_complete(restore(fresh, saved))
    fresh["optimizer"].train()
    assert continue_from(fresh, 3) == expected


def test_the_documented_example_runs() -> None:
    """The Python block of the documentation page does what it says."""
    page = (Path(__file__).parents[2] / "docs" / "state.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/state.md", "exec"), names)
    assert names["report"].complete


def test_a_class_that_was_renamed_keeps_its_state() -> None:
    """State is kept by name and kind, so a module's or object's class may move or be called otherwise."""

    class Before(nn.Linear):
        pass

    class After(nn.Linear):
        pass

    class Counter:
        def __init__(self, count: int) -> None:
            self.count = count

    class Tally(Counter):
        pass

    model, renamed, tally = Before(2, 1), After(2, 1), Tally(0)
    saved = decode(*encode(capture({"model": model, "counter": Counter(3)})))
    assert restore({"model": renamed, "counter": tally}, saved).complete
    assert torch.equal(model.weight, renamed.weight)
    assert tally.count == 3
