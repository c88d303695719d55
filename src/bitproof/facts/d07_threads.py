"""D7: the number of threads changes a sum."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import torch

torch.manual_seed(0)
tensors = [torch.randn(1_000_000) for _ in range(10)]


def sums(threads):
    torch.set_num_threads(threads)
    return [tensor.sum().item() for tensor in tensors]


with_1, with_2 = sums(1), sums(2)
repeated = sums(1) == with_1 and sums(2) == with_2
differing = [pair for pair in zip(with_1, with_2) if pair[0] != pair[1]]
one, two = (differing or [(with_1[0], with_2[0])])[0]
count = len(differing)
print(count, "of 10 differ:", one, two)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    seen = (
        f"Of 10 tensors with 1,000,000 numbers each, {v['count']} had another sum with 2 threads than with 1, such as {v['two']!r} "
        f"where 1 thread gave {v['one']!r}"
    )
    if not v["repeated"]:
        return (
            "cannot-be-tried",
            f"{seen}; but the same number of threads did not repeat its own sums, so threads are not what differs.",
        )
    return holds_if(v["count"] > 0), f"{seen}. Each number of threads repeats its own."


FACT = Fact(
    id="D7",
    title="Threads change sums",
    topic="determinism",
    difficulty=2,
    statement="The number of intra-op threads changes a float32 sum: each thread adds up its own part.",
    snippet=SNIPPET,
    remedy=(
        "Fix the number of threads (`OMP_NUM_THREADS`, `torch.set_num_threads`) for all legs of a run. It is in every trail, "
        "and `bitproof diff` names a change (`environment-changed`)."
    ),
    judge=_judge,
)
