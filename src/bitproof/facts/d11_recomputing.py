"""D11: activation checkpointing repeats only torch's random numbers, and only if it is told to."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import random

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

draws = {
    "torch": lambda: torch.rand(64),
    "random": lambda: torch.tensor([random.random() for _ in range(64)]),
    "numpy": lambda: torch.from_numpy(np.random.rand(64)).float(),
}


def repeats(draw, preserve):
    masks = []

    def block(x):
        masks.append(draw() < 0.5)
        return x * masks[-1]

    x = torch.ones(64, requires_grad=True)
    checkpoint(block, x, use_reentrant=False, preserve_rng_state=preserve).sum().backward()
    first, recomputed = masks
    return torch.equal(first, recomputed)


kept = [name for name, draw in draws.items() if repeats(draw, preserve=True)]
kept_without = [name for name, draw in draws.items() if repeats(draw, preserve=False)]
print(kept, kept_without)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    kept, without = (" and ".join(v[name]) or "none" for name in ("kept", "kept_without"))
    seen = (
        f"Masks drawn from torch, random and numpy; repeated in the backward pass with preserve_rng_state=True: {kept}; "
        f"with False: {without}."
    )
    return holds_if(v["kept"] == ["torch"] and not v["kept_without"]), seen


FACT = Fact(
    id="D11",
    title="Recomputing draws again",
    topic="determinism",
    difficulty=2,
    statement=(
        "Activation checkpointing repeats torch's dropout mask only with `preserve_rng_state=True`, and never a mask drawn from "
        "`random` or NumPy: the gradients then belong to another mask than the loss."
    ),
    snippet=SNIPPET,
    remedy=(
        "Leave `preserve_rng_state` on, and draw inside a checkpointed block from torch only. `bitproof diff` calls it "
        "`recompute-changed` when losses are equal and gradients are not."
    ),
    judge=_judge,
)
