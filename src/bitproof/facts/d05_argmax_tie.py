"""D5: argmax on a tie gives the first index."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import torch

tried = first = 0
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64):
    for size in (2, 3, 8, 17, 64, 1000, 4097, 100_000):
        for at in {0, size // 3, size - 2}:
            scores = torch.zeros(size, dtype=dtype)
            scores[at:] = 1  # every score from here on ties
            tried += 1
            first += int(scores.argmax()) == at
print(first, "of", tried)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    return holds_if(v["first"] == v["tried"]), f"In {v['first']} of {v['tried']} ties argmax gave the first index."


FACT = Fact(
    id="D5",
    title="argmax takes the first of equals",
    topic="determinism",
    difficulty=2,
    statement="Where several elements are the largest, `argmax` returns the first index, as its documentation promises.",
    snippet=SNIPPET,
    remedy=(
        "A tie is safe; a near-tie is not: one other last bit changes the token or the class. `bitproof diff` shows the bits "
        "that changed before the decision did."
    ),
    judge=_judge,
)
