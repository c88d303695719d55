"""What counts as a step, and what of its state and work is seen."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

import bitproof
from bitproof.fingerprint import ABSENT
from bitproof.trail.reader import Detail, Leg, read_trail


def names(leg: Leg, step: int, facet: str) -> tuple[str, ...]:
    """The names of a facet's tensors at a step."""
    return seen(leg, step).facets[facet].names


def seen(leg: Leg, step: int) -> Detail:
    """The tensors of a step."""
    detail = leg.detail(step)
    assert detail is not None
    return detail


def batches(count: int, width: int = 4) -> Iterator[torch.Tensor]:
    """Random inputs."""
    for _ in range(count):
        yield torch.randn(3, width)


def test_two_optimizers_that_alternate_are_two_steps_an_iteration(recorded: Any) -> None:
    """A generator's and a discriminator's updates are steps of their own, each with its own optimizer's state."""
    maker, judge = nn.Linear(4, 4), nn.Linear(4, 1)

    def train() -> None:
        first = torch.optim.Adam(maker.parameters(), 0.01)
        second = torch.optim.SGD(judge.parameters(), 0.1)
        for x in batches(3):
            second.zero_grad()
            (judge(x).mean() - judge(maker(x).detach()).mean()).backward()
            second.step()
            first.zero_grad()
            (-judge(maker(x)).mean()).backward()
            first.step()

    leg = recorded.run(train)
    assert [head.updates for head in leg.steps] == [1] * 6
    assert {name.split("/")[0] for name in names(leg, 1, "hyperparameters")} == {"SGD"}
    assert {name.split("/")[0] for name in names(leg, 2, "hyperparameters")} == {"Adam"}
    assert [len(head.micros) for head in leg.steps] == [1] * 6


def test_optimizers_one_after_another_are_one_step(recorded: Any) -> None:
    """Updates with no backward pass between them make one step, with both states before it."""
    a, b = nn.Linear(4, 4), nn.Linear(4, 1)

    def train() -> None:
        optimizers = [torch.optim.SGD(a.parameters(), 0.1, momentum=0.9), torch.optim.Adam(b.parameters())]
        for x in batches(3):
            b(a(x)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    leg = recorded.run(train)
    assert [head.updates for head in leg.steps] == [2, 2, 2]
    assert {name.split("/")[0] for name in names(leg, 2, "optimizer")} == {"SGD", "Adam"}
    assert set(names(leg, 1, "gradients")) == {"Linear/bias", "Linear/weight", "Linear#2/bias", "Linear#2/weight"}


def test_generator_states_survive_a_step_that_is_written_twice(recorded: Any) -> None:
    """The generators' states of a step are kept when a second update joins it."""
    a, b = nn.Linear(4, 4), nn.Linear(4, 1)

    def train() -> None:
        optimizers = [torch.optim.SGD(a.parameters(), 0.1), torch.optim.SGD(b.parameters(), 0.1)]
        for x in batches(2):
            b(a(x)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()

    leg = recorded.run(train)
    for head in leg.steps:
        for name, digest in head.rng_start.items():
            assert leg.generator_state(name, digest) is not None


class Wrapped(torch.optim.Optimizer):
    """An optimizer that calls another one, as Lookahead does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Take the inner step, then one of its own."""
        del closure
        self.inner.step()
        for group in self.param_groups:
            for parameter in group["params"]:
                slow = self.state[parameter].setdefault("slow", parameter.detach().clone())
                slow.lerp_(parameter.detach(), 0.5)


def test_of_nested_optimizers_the_outermost_counts(recorded: Any) -> None:
    """A wrapper's update is one step, and the inner optimizer's state is seen too."""
    net = nn.Linear(4, 1)

    def train() -> None:
        optimizer = Wrapped(torch.optim.Adam(net.parameters()))
        for x in batches(3):
            net(x).sum().backward()
            optimizer.step()

    leg = recorded.run(train)
    assert [head.updates for head in leg.steps] == [1, 1, 1]
    assert "Wrapped/Linear/weight.slow" in names(leg, 2, "optimizer")
    assert "Adam/Linear/weight.exp_avg" in names(leg, 2, "optimizer")


def test_optimizers_inside_backward_are_one_step_a_backward(recorded: Any) -> None:
    """One optimizer a parameter, stepped by hooks, makes one step with every gradient in it."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def train() -> None:
        optimizers = {p: torch.optim.SGD([p], 0.1) for p in net.parameters()}

        def step(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            parameter.grad = None

        handles = [p.register_post_accumulate_grad_hook(step) for p in net.parameters()]
        for x in batches(3):
            net(x).sum().backward()
        for handle in handles:
            handle.remove()

    leg = recorded.run(train)
    assert [head.updates for head in leg.steps] == [4, 4, 4]
    assert [len(head.micros) for head in leg.steps] == [1, 1, 1]
    gradients = seen(leg, 2).facets["gradients"].by_name()
    assert len(gradients) == 4
    assert all(kind != "none" for kind, _, _ in gradients.values())


def test_closures_are_micro_steps(recorded: Any) -> None:
    """Each time LBFGS calls its closure is a micro-step, and the first one's gradients are the step's."""
    net = nn.Linear(4, 1)
    calls: list[int] = []

    def train() -> None:
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
        for x in batches(2):
            calls.append(0)

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                calls[-1] += 1
                optimizer.zero_grad()
                loss = net(x).pow(2).mean() + 1
                loss.backward()
                return loss

            optimizer.step(closure)

    leg = recorded.run(train)
    assert [len(head.micros) for head in leg.steps] == calls
    assert all(head.roots.keys() >= {"batch", "loss", "gradients", "weights"} for head in leg.steps)
    assert any("old_dirs" in name for name in names(leg, 2, "optimizer"))


def test_a_closure_shows_the_weights_of_models_that_it_calls_first(recorded: Any) -> None:
    """Frozen weights are seen at the first step too when the forward pass is inside the optimizer's closure."""
    base, head = nn.Linear(4, 4), nn.Linear(4, 1)
    base.requires_grad_(requires_grad=False)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.head = base, head

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.base(x))

    def train() -> None:
        net = Net()
        optimizer = torch.optim.Adam(head.parameters())
        for x in batches(2):

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = net(x).sum()
                loss.backward()
                return loss

            optimizer.step(closure)

    leg = recorded.run(train)
    expected = ("Net/base.bias", "Net/base.weight", "Net/head.bias", "Net/head.weight")
    assert names(leg, 1, "weights") == names(leg, 2, "weights") == expected
    assert leg.steps[0].roots["weights"] != leg.steps[1].roots["weights"]


def test_accumulation_has_micro_steps(recorded: Any) -> None:
    """Each backward pass before an update is a micro-step with its own batch, loss, generators and buffers."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def train() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for i, x in enumerate(batches(6)):
            net(x).sum().backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()

    leg = recorded.run(train)
    assert [len(head.micros) for head in leg.steps] == [3, 3]
    for head in leg.steps:
        assert len({micro.batch for micro in head.micros}) == 3
        assert len({micro.loss for micro in head.micros}) == 3
        assert [micro.buffers is not None for micro in head.micros] == [False, True, True]
        assert [bool(micro.rng) for micro in head.micros] == [False, True, True]


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_a_step_that_the_scaler_skips_counts_and_is_marked(recorded: Any, *, fused: bool) -> None:
    """An overflow makes a step whose weights stay, marked as skipped, and an event with the new scale."""
    net = nn.Linear(4, 1)

    def train() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        for i, x in enumerate(batches(4)):
            optimizer.zero_grad()
            scaler.scale(net(x).sum() * (float("inf") if i == 1 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()

    leg = recorded.run(train)
    assert [head.skipped for head in leg.steps] == [False, True, False, False]
    weights = [head.roots["weights"] for head in leg.steps]
    assert weights[1] == weights[2]
    assert len(set(weights)) == 3
    scales = [head.roots["scaler"] for head in leg.steps]
    assert scales[1] != scales[2]
    events = [event for event in leg.events if event.kind == "scaler-skipped"]
    assert [(event.step, event.data) for event in events] == [(2, {"scale": 32.0})]


def test_sparse_gradients_are_seen(recorded: Any) -> None:
    """The rows and values of a sparse gradient are fingerprinted, however it is stored."""
    net = nn.Embedding(10, 3, sparse=True)

    def train() -> None:
        optimizer = torch.optim.SparseAdam(net.parameters())
        for index in ([1, 2], [2, 3], [2, 3]):
            optimizer.zero_grad()
            net(torch.tensor(index)).sum().backward()
            optimizer.step()

    leg = recorded.run(train)
    roots = [head.roots["gradients"] for head in leg.steps]
    assert roots[0] != roots[1] == roots[2]


def test_none_is_not_zero(recorded: Any) -> None:
    """A gradient that is missing and one that is zero are told apart."""
    net = nn.Linear(4, 1)

    def train() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        net(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        net(torch.zeros(1, 4)).sum().backward()
        net.weight.grad = None
        optimizer.step()
        net(torch.zeros(1, 4)).sum().backward()
        optimizer.step()

    leg = recorded.run(train)
    kinds = [seen(leg, step).facets["gradients"].by_name()["Linear/weight"][:2] for step in (2, 3)]
    assert kinds[0] == ("none", ABSENT)
    assert kinds[1][0] == "float32[1, 4]"
    assert kinds[1][1] != ABSENT


def test_frozen_tied_and_target_weights(recorded: Any) -> None:
    """Weights without gradients are seen, tied ones once, and a target net's that are written through ``.data``."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
            self.head.weight = self.embed.weight
            self.frozen = nn.Linear(4, 4).requires_grad_(requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.frozen(self.embed(x)))

    def train() -> None:
        net, target = Tied(), Tied()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            index = torch.randint(6, (3,))
            optimizer.zero_grad()
            (net(index) - target(index).detach()).pow(2).sum().backward()
            optimizer.step()
            for old, new in zip(target.parameters(), net.parameters(), strict=True):
                old.data.mul_(0.9).add_(new.data, alpha=0.1)

    leg = recorded.run(train)
    own = ("embed.weight", "frozen.bias", "frozen.weight")
    assert set(names(leg, 1, "weights")) == {f"{net}/{name}" for net in ("Tied", "Tied#2") for name in own}
    digests = [seen(leg, step).facets["weights"].by_name()["Tied#2/embed.weight"][1] for step in (1, 2, 3)]
    assert len(set(digests)) == 3


def test_a_model_that_is_called_functionally(recorded: Any) -> None:
    """A model whose parts are used without calling it, and a parameter in no module, have stable names and are seen."""
    net, loose = nn.Linear(4, 1), nn.Parameter(torch.ones(1))

    def train() -> None:
        optimizer = torch.optim.SGD([*net.parameters(), loose], 0.1)
        for x in batches(2):
            (F.linear(x, net.weight, net.bias) * loose).sum().backward()
            optimizer.step()

    leg = recorded.run(train)
    assert names(leg, 1, "weights") == ("SGD/group0.0", "SGD/group0.1", "SGD/group0.2")
    assert leg.steps[0].roots["loss"] != leg.steps[1].roots["loss"]


def test_a_model_made_while_recording_has_names_though_never_called(recorded: Any) -> None:
    """A parameter's module names it, also where the module itself is never called."""

    def train() -> None:
        net = nn.Sequential(nn.Linear(4, 1))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for x in batches(2):
            F.linear(x, net[0].weight, net[0].bias).sum().backward()
            optimizer.step()

    assert names(recorded.run(train), 1, "weights") == ("Sequential/0.bias", "Sequential/0.weight")


def test_several_models_of_one_class_are_numbered_in_the_order_of_use(recorded: Any) -> None:
    """Names of the second model of a class do not hide the first one's."""
    nets = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)]

    def train() -> None:
        optimizer = torch.optim.SGD([p for net in nets for p in net.parameters()], 0.1)
        for x in batches(2):
            nets[0](nets[1](nets[2](x))).sum().backward()
            optimizer.step()

    leg = recorded.run(train)
    assert {name.split("/")[0] for name in names(leg, 1, "weights")} == {"Linear", "Linear#2", "Linear#3"}


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_wrapper_put_around_a_model_that_was_used_does_not_rename_it(recorded: Any) -> None:
    """A model has the same names before and after it is wrapped for compilation or data parallelism."""
    net = nn.Linear(4, 1)

    def train() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        net(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        wrapped = nn.DataParallel(net)
        wrapped(torch.ones(1, 4)).sum().backward()
        optimizer.step()

    leg = recorded.run(train)
    assert names(leg, 1, "weights") == names(leg, 2, "weights") == ("Linear/bias", "Linear/weight")


def test_buffers_that_are_replaced_are_followed(recorded: Any) -> None:
    """``Module.double()`` puts new buffers in place without a hook; they are seen all the same."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def train() -> None:
        net(torch.randn(3, 4)).sum().backward()
        net.double()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        optimizer.zero_grad()
        net(torch.randn(3, 4).double()).sum().backward()
        optimizer.step()
        net(torch.randn(3, 4).double()).sum().backward()
        optimizer.step()

    leg = recorded.run(train)
    buffers = seen(leg, 2).facets["buffers"].by_name()
    assert buffers["Sequential/1.running_mean"][0] == "float64[4]"
    assert leg.steps[0].roots["buffers"] != leg.steps[1].roots["buffers"]


class Failing(torch.optim.SGD):
    """Fails when it is told to."""

    fail = False

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update, or fail."""
        if self.fail:
            msg = "as told"
            raise RuntimeError(msg)
        return super().step(closure)


@pytest.mark.parametrize("where", ["forward", "backward", "optimizer", "closure", "second"])
def test_an_exception_leaves_the_recorder_sane(recorded: Any, where: str) -> None:
    """After a forward, backward or update that raised, the next steps are counted and seen as always."""
    net, other = nn.Linear(4, 1), nn.Linear(4, 1)

    class Break(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, *_grad: torch.Tensor) -> torch.Tensor:
            msg = "as told"
            raise RuntimeError(msg)

    def fail() -> float:
        msg = "as told"
        raise RuntimeError(msg)

    def train() -> None:
        optimizer = Failing(net.parameters(), 0.1)
        first = torch.optim.SGD(other.parameters(), 0.1)
        for i, x in enumerate(batches(5)):
            optimizer.fail = i == 2 and where in {"optimizer", "second"}
            optimizer.zero_grad()
            try:
                if i == 2 and where == "closure":
                    optimizer.step(fail)
                out = net(x[:, :3] if i == 2 and where == "forward" else x)
                (Break.apply(out) if i == 2 and where == "backward" else out).sum().backward()
                if where == "second":
                    first.step()
                optimizer.step()
            except RuntimeError:
                assert i == 2  # only then was it told to

    leg = recorded.run(train)
    updates = [head.updates for head in leg.steps]
    assert updates == ([2, 2, 1, 2, 2] if where == "second" else [1, 1, 1, 1])
    assert [len(head.micros) for head in leg.steps[-1:]] == [1]
    assert len({head.roots["batch"] for head in leg.steps}) == len(updates)


@pytest.mark.parametrize(("mode", "guarded"), [("eval", True), ("eval", False), ("train", True)])
def test_evaluation_between_steps_is_no_part_of_a_step(recorded: Any, mode: str, *, guarded: bool) -> None:
    """A forward pass in evaluation mode does not enter the next step's batch, with or without ``no_grad``."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def run(*, evaluate: bool) -> list[int]:
        torch.manual_seed(0)
        random.seed(0)
        nn.init.normal_(net[0].weight), nn.init.normal_(net[1].weight)
        inputs = list(batches(4))

        def train() -> None:
            optimizer = torch.optim.SGD(net.parameters(), 0.0)
            for x in inputs:
                if evaluate:
                    net.train(mode == "train")
                    with torch.set_grad_enabled(not guarded):
                        net(torch.full((5, 4), 7.0))
                        net(torch.full((5, 4), 8.0))
                    net.train()
                net(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

        return [head.roots["batch"] for head in recorded.run(train).steps]

    assert run(evaluate=True) == run(evaluate=False)


def test_a_frozen_backbone_in_evaluation_mode_is_part_of_the_step(recorded: Any) -> None:
    """What enters through a model in evaluation mode counts where a trained one goes on from its output."""
    backbone, head = nn.Linear(4, 4).eval(), nn.Linear(4, 1)

    def train() -> None:
        optimizer = torch.optim.SGD(head.parameters(), 0.1)
        for x in batches(3):
            head(backbone(x)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    leg = recorded.run(train)
    assert len({step.roots["batch"] for step in leg.steps}) == 3
    assert seen(leg, 1).batches[0].kinds == ("float32[3, 4]",)


def test_gradients_from_autograd_grad(recorded: Any) -> None:
    """Gradients asked for with ``torch.autograd.grad`` and set by hand make steps, with batch and loss."""
    net = nn.Linear(4, 1)

    def train() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for x in batches(3):
            loss = net(x).sum()
            net.weight.grad, net.bias.grad = torch.autograd.grad(loss, [net.weight, net.bias])
            optimizer.step()

    leg = recorded.run(train)
    assert [len(head.micros) for head in leg.steps] == [1, 1, 1]
    assert len({head.roots["batch"] for head in leg.steps}) == 3
    assert len({head.roots["loss"] for head in leg.steps}) == 3


def test_a_gradient_penalty_is_no_step_of_its_own(recorded: Any) -> None:
    """``torch.autograd.grad`` inside the work of a step does not make another one."""
    net = nn.Linear(4, 1)

    def train() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for x in batches(3):
            x.requires_grad_()
            out = net(x).sum()
            (slope,) = torch.autograd.grad(out, x, create_graph=True)
            (out + slope.pow(2).sum()).backward()
            optimizer.step()

    leg = recorded.run(train)
    assert [len(head.micros) for head in leg.steps] == [1, 1, 1]
    assert [head.updates for head in leg.steps] == [1, 1, 1]


class Odd(torch.optim.Optimizer):
    """Keeps state of every kind, and chooses its rate by itself."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": None, "shape": {"warm": [1, 2]}})

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Count, and change nothing."""
        del closure
        total: dict[Any, Any] = self.state
        total.setdefault("total", 0)
        total["total"] += 1
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["nested"] = {"deep": [torch.full((2,), float(total["total"]))]}
            state["thing"] = object()
        self.param_groups[0]["shape"]["warm"][0] += 1


def test_state_of_every_kind_is_seen_or_said(recorded: Any) -> None:
    """Nested state, state of no parameter and nested settings are seen; an unknown object is said to be not observed."""
    net = nn.Linear(4, 1)

    def train() -> None:
        optimizer = Odd(net.parameters())
        for x in batches(4):
            net(x).sum().backward()
            optimizer.step()

    leg = recorded.run(train)
    assert leg.steps[0].rate is None
    for name in ("Odd/total", "Odd/Linear/weight.nested"):
        assert len({seen(leg, step).facets["optimizer"].by_name()[name][1] for step in (2, 3, 4)}) == 3
    assert len({head.roots["hyperparameters"] for head in leg.steps}) == 4
    said = [event.data["what"] for event in leg.events if event.kind == "not-observed"]
    assert said == ["a object in an optimizer"]


def test_the_state_after_the_last_step_is_kept(recorded: Any) -> None:
    """The trail ends with the weights and the optimizer's state after the last update."""
    net = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(net.parameters())

    def train() -> None:
        for x in batches(2):
            net(x).sum().backward()
            optimizer.step()

    leg = recorded.run(train)
    detail = leg.final_detail()
    assert detail is not None
    assert detail.facets["weights"].names == ("Linear/bias", "Linear/weight")
    assert detail.facets["weights"].digests != seen(leg, 2).facets["weights"].digests
    assert leg.ended == "ended"


def test_legs_follow_each_other(recorded: Any) -> None:
    """Recording into a trail again adds a leg, whose first state is the last one's end."""
    net = nn.Linear(4, 1)

    def train() -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for x in batches(2):
            net(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    first, second = recorded.run(train), recorded.run(train)
    assert (first.number, second.number) == (1, 2)
    assert first.final is not None
    assert first.final.roots["weights"] == second.steps[0].roots["weights"]
    with bitproof.recording(recorded.path, append=True):
        pass
    assert len(read_trail(recorded.path).legs) == 2


def test_events_have_the_users_line(recorded: Any) -> None:
    """Seeds, restored generators, loaded state and files come with the file and line of the script."""
    net = nn.Linear(4, 1)

    def train() -> None:
        torch.manual_seed(7)
        random.seed(8)
        torch.set_rng_state(torch.get_rng_state())
        path = recorded.path.parent / "a.pt"
        torch.save(net.state_dict(), path)
        net.load_state_dict(torch.load(path))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        net(torch.ones(1, 4)).sum().backward()
        optimizer.step()

    leg = recorded.run(train)
    kinds = [event.kind for event in leg.events]
    assert kinds == ["seed", "seed", "rng-restored", "file-saved", "file-loaded", "load-state-dict", "ended"]
    assert [event.data.get("seed") for event in leg.events[:2]] == [7, 8]
    lines = [event.where for event in leg.events[:-1]]
    assert all(line is not None and line.startswith(f"{__file__}:") for line in lines)
    assert len(set(lines)) == 5  # a file is loaded in the line that loads the state dict
