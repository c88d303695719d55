"""C10: loading an optimizer casts its state to the dtype of the parameters."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import torch


class Momentum(torch.optim.Optimizer):  # keeps float32 momentum and a counter for bfloat16 weights
    def __init__(self, params):
        super().__init__(params, {})

    def step(self):
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            state["step"] = state.get("step", torch.tensor(0)) + 257
            state["samples"] = state.get("samples", torch.tensor(0)) + 257
            state["momentum"] = 0.9 * state.get("momentum", torch.zeros(1)) + weight.grad.float()
            weight.data -= state["momentum"].to(weight.dtype)


def new():
    model = torch.nn.Linear(1, 1, bias=False).bfloat16()
    return model, Momentum(model.parameters())


def state_of(optimizer):
    return {name: [str(value.dtype)[6:], value.item()] for name, value in optimizer.state_dict()["state"][0].items()}


model, optimizer = new()
for _ in range(2):
    model.weight.grad = torch.full_like(model.weight, 0.1)
    optimizer.step()
resumed_model, resumed = new()
resumed.load_state_dict(optimizer.state_dict())
saved, loaded = state_of(optimizer), state_of(resumed)
print(saved, loaded)
"""

REMEDY_SNIPPET = """\
from bitproof.state import capture, decode, encode, restore

document, tensors = encode(capture({"model": model, "optimizer": optimizer}))
resumed_model, resumed = new()
report = restore({"model": resumed_model, "optimizer": resumed}, decode(document, tensors))
exact = report.complete and state_of(resumed) == saved
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    saved, loaded = v["saved"], v["loaded"]

    def said(name: str) -> str:
        (one, before), (two, after) = saved[name], loaded[name]
        return f"{name} {one} {before!r} → {two} {after!r}"

    seen = (
        f"Beside a bfloat16 weight: {said('momentum')}; an integer counter is cast too: {said('samples')}; one that is called "
        f"`step` is not: {said('step')}. Restored by bitproof, all are exact ({v['exact']})."
    )
    return holds_if(loaded["momentum"][0] == "bfloat16" != saved["momentum"][0]), seen


FACT = Fact(
    id="C10",
    title="Loading an optimizer casts its state",
    topic="checkpoints",
    difficulty=3,
    statement=(
        "`Optimizer.load_state_dict` casts the state to the parameter's dtype: float32 momentum beside bfloat16 weights loses its "
        "bits, and so does an integer counter, unless it is called `step`."
    ),
    snippet=SNIPPET,
    remedy=(
        "`bitproof.Run` and `bitproof.state.restore` put the exact tensors back after loading, and check them; `bitproof prove` "
        "names `optimizer-not-restored` with the change of dtype."
    ),
    judge=_judge,
    remedy_snippet=REMEDY_SNIPPET,
)
