"""C1: with weights alone, momentum starts from zero."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import torch


def moves(weight, optimizer, steps):  # how far each step goes, with a gradient of 1
    sizes = []
    for _ in range(steps):
        before = weight.item()
        weight.grad = torch.ones(1)
        optimizer.step()
        sizes.append(round(before - weight.item(), 3))
    return sizes


weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
moves(weight, optimizer, 20)

loaded = torch.nn.Parameter(weight.detach().clone())  # the checkpoint had the weights alone
resumed = moves(loaded, torch.optim.SGD([loaded], lr=1.0, momentum=0.9), 3)
uninterrupted = moves(weight, optimizer, 3)
print(uninterrupted, resumed)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    seen = (
        f"With the same gradient, the uninterrupted run moves its weight by {v['uninterrupted']} in the next 3 steps, "
        f"the resumed one by {v['resumed']}."
    )
    return holds_if(v["resumed"] != v["uninterrupted"] and v["resumed"][0] == 1.0), seen


FACT = Fact(
    id="C1",
    title="Weights alone lose the momentum",
    topic="checkpoints",
    difficulty=2,
    statement="Resuming with the weights alone and a fresh SGD with momentum, the first steps rebuild the momentum from zero.",
    snippet=SNIPPET,
    remedy="Register the optimizer with `bitproof.Run`, which saves it whole; `bitproof prove` names `optimizer-not-restored`.",
    judge=_judge,
)
