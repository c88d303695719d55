"""C7: a flipped bit loads without a word."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import random

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

torch.manual_seed(0)
positions = random.Random(0)
weights = {"weight": torch.rand(256, 256)}
data = weights["weight"].numpy().tobytes()


def noticed(path, load, tries):  # how often loading says that one bit of the tensor was flipped
    with open(path, "rb") as file:
        whole = file.read()
    count = 0
    for _ in range(tries):
        flipped = bytearray(whole)
        flipped[whole.index(data) + positions.randrange(len(data))] ^= 1 << positions.randrange(8)
        with open(path, "wb") as file:
            file.write(flipped)
        try:
            load()
        except BaseException:
            count += 1
    return count


torch.save(weights, "a.pt")
save_file(weights, "b.safetensors")
dcp.save(weights, checkpoint_id="c", no_dist=True)
into = {"weight": torch.empty(256, 256)}
torch_load = noticed("a.pt", lambda: torch.load("a.pt"), 200)
safetensors = noticed("b.safetensors", lambda: load_file("b.safetensors"), 200)
distributed = noticed("c/__0_0.distcp", lambda: dcp.load(into, checkpoint_id="c", no_dist=True), 50)
print(torch_load, safetensors, distributed)
"""

REMEDY_SNIPPET = """\
import pathlib

from bitproof.store import Store

with Store("d") as store:
    store.save(b"{}", weights, step=1)
(object_file,) = pathlib.Path("d/objects").rglob("*.safetensors")
object_file.chmod(0o600)
in_store = noticed(object_file, lambda: Store("d", create=False).open(1).verify(), 200)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    seen = (
        f"Flips noticed while loading: torch.load {v['torch_load']} of 200, safetensors {v['safetensors']} of 200, "
        f"torch.distributed.checkpoint {v['distributed']} of 50; bitproof's store {v['in_store']} of 200."
    )
    return holds_if(v["torch_load"] == v["safetensors"] == v["distributed"] == 0), seen


FACT = Fact(
    id="C7",
    title="A flipped bit loads silently",
    topic="checkpoints",
    difficulty=2,
    statement="A bit that flipped in a checkpoint's tensors loads without a word: the common loaders verify no checksum of the data.",
    snippet=SNIPPET,
    remedy="`bitproof.store.Store` has a digest of every tensor and checks it when reading; `bitproof verify RUN` checks them all.",
    judge=_judge,
    remedy_snippet=REMEDY_SNIPPET,
)
