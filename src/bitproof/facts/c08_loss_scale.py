"""C8: the loss scale is hidden state."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import torch


def scales(scaler, gradients):  # the scale after each step
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    found = []
    for gradient in gradients:
        scaler.scale(weight.sum())  # makes the scale
        weight.grad = torch.tensor([gradient])
        scaler.step(optimizer)
        scaler.update()
        found.append(int(scaler.get_scale()))
    return found


def new():
    return torch.amp.GradScaler("cpu", init_scale=1024, growth_interval=3)


uninterrupted = scales(new(), [1.0] * 6)
resumed = scales(new(), [1.0] * 2) + scales(new(), [1.0] * 4)  # stopped after 2 steps, scaler lost
start = int(torch.amp.GradScaler("cpu").get_scale())
(overflow,) = scales(torch.amp.GradScaler("cpu"), [float("inf")])
print(uninterrupted, resumed, start, overflow)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    seen = (
        f"The scale starts at {v['start']} and is {v['overflow']} after an overflow. With growth after 3 good steps it goes "
        f"{', '.join(map(str, v['uninterrupted']))}; stopped after 2 steps and resumed without the scaler "
        f"{', '.join(map(str, v['resumed']))}."
    )
    expected = v["start"] == 2**16 and v["overflow"] == 2**15
    return holds_if(expected and v["uninterrupted"] != v["resumed"]), seen


FACT = Fact(
    id="C8",
    title="The loss scale is hidden state",
    topic="checkpoints",
    difficulty=1,
    statement=(
        "Dynamic loss scaling is hidden state: the scale starts at 2^16, halves on overflow and doubles after enough good steps. "
        "Lost at resume, it changes which steps are skipped."
    ),
    snippet=SNIPPET,
    remedy=(
        "Save the scaler, or register it with `bitproof.Run`. `bitproof prove` compares scale and growth counter at every step "
        "(`scaler-not-restored`)."
    ),
    judge=_judge,
)
