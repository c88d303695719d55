"""D10: a loader's workers draw other numbers when there are more of them."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import torch
from torch.utils.data import DataLoader


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(())


def drawn(workers):
    torch.manual_seed(0)
    start = "fork" if workers else None
    loader = DataLoader(Noise(), batch_size=2, num_workers=workers, multiprocessing_context=start)
    return [round(number, 4) for batch in loader for number in batch.tolist()]


none, one, two = drawn(0), drawn(1), drawn(2)
repeated = drawn(2) == two
print(none, one, two, repeated)
"""

REMEDY_SNIPPET = """\
from bitproof.data import Loader


def keyed(workers):
    start = "fork" if workers else None
    loader = Loader(Noise(), batch_size=2, seed=0, num_workers=workers, multiprocessing_context=start)
    return [number for batch in loader for number in batch.tolist()]


independent = keyed(0) == keyed(1) == keyed(2)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    seen = (
        f"Samples 3 and 4 of 8 were {v['none'][2:4]} without workers, {v['one'][2:4]} with 1 and {v['two'][2:4]} with 2, though "
        f"2 workers repeat themselves ({v['repeated']}); bitproof's loader gave the same with 0, 1 and 2 ({v['independent']})."
    )
    return holds_if(v["one"] != v["two"] and v["none"] != v["one"]), seen


FACT = Fact(
    id="D10",
    title="Another number of workers, other random numbers",
    topic="determinism",
    difficulty=2,
    statement="Worker processes of a loader draw other random numbers when their number changes, with the same seed.",
    snippet=SNIPPET,
    remedy="Use `bitproof.data.Loader`: each sample's generators are set from (seed, epoch, index), whichever process reads it.",
    judge=_judge,
    remedy_snippet=REMEDY_SNIPPET,
)
