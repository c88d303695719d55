"""D4: ranks that seed with the same value augment alike."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import multiprocessing

import torch


def flips(rank):
    torch.manual_seed(0)  # the same on every rank
    return (torch.rand(16) < 0.5).int().tolist()  # flip the image, of 16 samples in turn


with multiprocessing.get_context("fork").Pool(4) as ranks:
    decided = ranks.map(flips, range(4), chunksize=1)
different = len(set(map(tuple, decided)))
print(different, "different of", len(decided))
"""

REMEDY_SNIPPET = """\
from bitproof.data import Loader, sample_rng


class Flips:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return int(sample_rng().random() < 0.5)  # keyed by (seed, epoch, index)


keyed = []
for rank in range(4):
    loader = Loader(Flips(), batch_size=64, seed=0, rank=rank, world_size=4)
    keyed.append([flip for batch in loader for flip in batch.tolist()])
different_keyed = len(set(map(tuple, keyed)))
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    seen = (
        f"Among 4 processes that seeded with 0, {v['different']} sequence of 16 flips was found; "
        f"keyed by sample, {v['different_keyed']} were."
    )
    return holds_if(v["different"] == 1), seen


FACT = Fact(
    id="D4",
    title="Ranks that share a seed augment alike",
    topic="determinism",
    difficulty=1,
    statement="Ranks that all seed with the same value take the same augmentation decisions at the same position of their data.",
    snippet=SNIPPET,
    remedy=(
        "Key randomness by sample, or by rank. `bitproof.data.Loader` sets the generators for each sample from (seed, epoch, "
        "index); `bitproof prove` names ranks that draw alike (`ranks-share-stream`)."
    ),
    judge=_judge,
    remedy_snippet=REMEDY_SNIPPET,
)
