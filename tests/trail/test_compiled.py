"""``torch.compile``: hooks stay out of the graph, and what cannot be seen is said."""

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Start with nothing compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    logging.getLogger("torch.__trace").setLevel(logging.ERROR)
    yield
    torch._dynamo.reset()


def network() -> nn.Module:
    """A small net with a draw in it."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


def model_only(backend: Any) -> nn.Module:
    """A compiled model, and everything else as always."""
    net = network()
    compiled = torch.compile(net, backend=backend)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        compiled(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    return net


def loss_function(backend: Any) -> nn.Module:
    """A compiled function that calls the model."""
    net = network()

    @torch.compile(backend=backend)
    def loss(x: torch.Tensor) -> torch.Tensor:
        return net(x).pow(2).sum()

    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss(torch.randn(3, 4)).backward()
        optimizer.step()
    return net


def in_place(backend: Any) -> nn.Module:
    """``Module.compile``."""
    net = network()
    net.compile(backend=backend)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    return net


def optimizer_too(backend: Any) -> nn.Module:
    """A compiled optimizer step."""
    net = network()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)

    @torch.compile(backend=backend, fullgraph=False)
    def update() -> None:
        optimizer.step()

    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(3, 4)).sum().backward()
        update()
    return net


def whole_step(backend: Any) -> nn.Module:
    """Forward, backward and update in one compiled function."""
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    @torch.compile(backend=backend)
    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    for _ in range(3):
        step(torch.randn(3, 4))
    return net


def outcome(make: Callable[[Any], nn.Module]) -> tuple[list[bytes], dict[str, int]]:
    """Train from one seed: the bits at the end, and how much was compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(1)
    counter = CompileCounter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net = make(counter)
    bits = [p.detach().numpy().tobytes() for p in net.parameters()] + [torch.get_rng_state().numpy().tobytes()]
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    said = len([w for w in caught if not issubclass(w.category, DeprecationWarning)])
    return bits, {"graphs": counter.frame_count, "ops": counter.op_count, "breaks": breaks, "warnings": said}


@pytest.mark.parametrize(
    "make", [model_only, loss_function, in_place, optimizer_too, whole_step], ids=lambda m: m.__name__
)
def test_recording_does_not_change_what_is_compiled(recorded: Any, make: Callable[[Any], nn.Module]) -> None:
    """The same bits, graphs, operations, graph breaks and warnings with the recorder as without it."""
    alone = outcome(make)
    watched = []
    try:
        recorded.run(lambda: watched.append(outcome(make)))
    except FileNotFoundError:  # no step could be seen
        assert make in {optimizer_too, whole_step}
    assert watched == [alone]


@pytest.mark.parametrize("make", [model_only, loss_function, in_place], ids=lambda m: m.__name__)
def test_a_compiled_forward_pass_is_seen(recorded: Any, make: Callable[[Any], nn.Module]) -> None:
    """Steps of a compiled model have weights under the names of the model itself, gradients, loss and generators."""
    leg = recorded.run(lambda: make("eager"))
    assert len(leg.steps) == 3
    detail = leg.detail(2)
    assert detail is not None
    assert detail.facets["weights"].names == tuple(
        f"Sequential/{n}" for n in ("0.bias", "0.weight", "3.bias", "3.weight")
    )
    assert len({head.roots["gradients"] for head in leg.steps}) == 3


@pytest.mark.parametrize("make", [optimizer_too, whole_step], ids=lambda m: m.__name__)
def test_a_compiled_update_is_said_not_to_be_observed(recorded: Any, make: Callable[[Any], nn.Module]) -> None:
    """A compiled update is either seen as a step like any other, or an event says that it was not."""
    import bitproof

    with bitproof.recording(recorded.path) as recorder:
        make("eager")
        events = recorder.early_events
    said = [event.data["what"] for event in events if event.kind == "not-observed"]
    if recorder.step:
        assert recorder.step == 3
    else:
        assert said == ["an optimizer step that torch.compile has compiled"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_a_real_compilation(recorded: Any) -> None:
    """A model compiled by inductor trains to the same bits with the recorder as without it."""

    def run() -> list[bytes]:
        torch._dynamo.reset()
        torch.manual_seed(1)
        net = model_only("inductor")
        return [p.detach().numpy().tobytes() for p in net.parameters()] + [torch.get_rng_state().numpy().tobytes()]

    alone = run()
    watched = []
    leg = recorded.run(lambda: watched.append(run()))
    assert watched == [alone]
    assert len(leg.steps) == 3
