"""D6: adding in parallel gives other last bits from run to run."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import os

import torch

cores = len(os.sched_getaffinity(0))
torch.set_num_threads(2)
torch.manual_seed(0)
values, cells = torch.rand(2_000_000), torch.randint(1000, (2_000_000,))


def results(add):
    return len({add(torch.zeros(1000)).numpy().tobytes() for _ in range(10)})


put = results(lambda x: x.index_put_((cells,), values, accumulate=True))
add = results(lambda x: x.index_add_(0, cells, values))
scatter = results(lambda x: x.scatter_add_(0, cells, values))
bins = results(lambda x: torch.bincount(cells, values))
torch.use_deterministic_algorithms(True)
pinned = results(lambda x: x.index_put_((cells,), values, accumulate=True))
print(put, add, scatter, bins, pinned)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    if v["put"] == 1 and v["cores"] < 2:
        return "cannot-be-tried", "It needs two cores, and this process may use one."
    seen = (
        f"10 tries on the CPU with 2 threads and equal inputs gave {v['put']} different results for index_put_, "
        f"{v['add']} for index_add_, {v['scatter']} for scatter_add_, {v['bins']} for bincount; with the deterministic setting "
        f"{v['pinned']} for index_put_."
    )
    return holds_if(v["put"] > 1), seen


FACT = Fact(
    id="D6",
    title="Parallel adds race for the last bits",
    topic="determinism",
    difficulty=2,
    statement=(
        "Where threads add to the same cells, the order of the additions is left to chance: equal inputs and an equal seed give "
        "other last bits from run to run, on the CPU too."
    ),
    snippet=SNIPPET,
    remedy=(
        "Use the deterministic algorithms. `bitproof prove` repeats the uninterrupted command before it blames the resume, and "
        "calls this `nondeterministic-op`."
    ),
    judge=_judge,
)
