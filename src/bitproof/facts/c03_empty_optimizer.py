"""C3: a new optimizer has no state until its first step."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import torch

weight = torch.nn.Parameter(torch.zeros(3))
optimizer = torch.optim.AdamW([weight])
before = len(optimizer.state_dict()["state"])
weight.grad = torch.ones(3)
optimizer.step()
after = len(optimizer.state_dict()["state"])
names = sorted(optimizer.state_dict()["state"][0])
print(before, after, names)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    seen = (
        f"The length of AdamW's state was {v['before']} before its first step and {v['after']} after it, "
        f"with {', '.join(v['names'])}."
    )
    return holds_if(v["before"] == 0 < v["after"]), seen


FACT = Fact(
    id="C3",
    title="A new optimizer's state is empty",
    topic="checkpoints",
    difficulty=1,
    statement='A new optimizer\'s `state_dict()["state"]` is empty until its first step: moments are made when they are first needed.',
    snippet=SNIPPET,
    remedy=(
        "An empty state after a resume is a finding. `bitproof.Run` compares what it restored with what was saved, and "
        "`bitproof prove` names `optimizer-not-restored`."
    ),
    judge=_judge,
)
