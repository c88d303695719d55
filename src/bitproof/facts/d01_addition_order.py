"""D1: addition of floats is not associative."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import torch

big, one = torch.tensor(1e16), torch.tensor(1.0)
left = float((big + one) - big)
right = float(big + (one - big))
apart = float((big - big) + one)
print(left, right, apart)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    results = v["left"], v["right"], v["apart"]
    seen = f"(1e16 + 1) − 1e16 = {results[0]}, 1e16 + (1 − 1e16) = {results[1]}, (1e16 − 1e16) + 1 = {results[2]}."
    return holds_if(len(set(results)) > 1), seen


FACT = Fact(
    id="D1",
    title="Addition depends on its order",
    topic="determinism",
    difficulty=3,
    statement="Adding floats is not associative: the same three numbers give 0 or 1, depending on which two are added first.",
    snippet=SNIPPET,
    remedy=(
        "Treat another order of additions as another program. `bitproof diff` compares bytes, and says beside them how "
        "many representable numbers (ULP) two values are apart."
    ),
    judge=_judge,
)
