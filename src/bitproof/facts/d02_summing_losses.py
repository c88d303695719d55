"""D2: the order in which losses are summed shows in the last digits."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import torch

torch.manual_seed(0)
losses = torch.rand(1024)  # one loss a sample

chain = torch.zeros(1)
for loss in losses:  # from left to right
    chain = chain + loss

tree = losses
while len(tree) > 1:  # in pairs, as a parallel sum does
    tree = tree[0::2] + tree[1::2]

ulp = int((chain.view(torch.int32) - tree.view(torch.int32)).abs())
chain, tree = chain.item(), tree.item()
print(chain, tree, ulp)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    seen = (
        f"The same 1,024 losses add up to {v['chain']!r} from left to right and to {v['tree']!r} as a tree: "
        f"{v['ulp']} ULP apart."
    )
    return holds_if(v["ulp"] > 0), seen


FACT = Fact(
    id="D2",
    title="A sum as a chain and as a tree",
    topic="determinism",
    difficulty=1,
    statement=(
        "Summing the same losses from left to right and as a binary tree differs in the last digits. "
        "That is no bug, and no seed changes it."
    ),
    snippet=SNIPPET,
    remedy=(
        "Log losses from one and the same reduction. `bitproof diff` says whether two losses differ because of their inputs "
        "or only in how they were added: it compares the batch and the weights first."
    ),
    judge=_judge,
)
