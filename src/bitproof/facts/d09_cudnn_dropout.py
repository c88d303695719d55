"""D9: the dropout inside cuDNN's recurrent layers follows neither the seed nor the deterministic setting."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import torch
from torch import nn

cuda = torch.cuda.is_available()
device = "cuda" if cuda else "cpu"
torch.backends.cudnn.deterministic = True
layer = nn.GRU(8, 32, num_layers=2, dropout=0.5).to(device)  # dropout between its two layers
inputs = torch.ones(16, 4, 8, device=device)

torch.manual_seed(0)
first = layer(inputs)[0].sum().item()
torch.manual_seed(0)
again = layer(inputs)[0].sum().item()
print(device, first, again)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    if not v["cuda"]:
        return "cannot-be-tried", (
            "There is no CUDA device here. What to look for in a script: an nn.RNN, nn.GRU or nn.LSTM with num_layers > 1 and "
            f"dropout > 0 that trains on a GPU. On this CPU seeding again repeats its dropout ({v['first'] == v['again']})."
        )
    return holds_if(v["first"] != v["again"]), (
        f"Seeded with 0 twice, the same layer gave {v['first']!r} and then {v['again']!r} on the GPU."
    )


FACT = Fact(
    id="D9",
    title="cuDNN's recurrent dropout has a stream of its own",
    topic="determinism",
    difficulty=2,
    statement=(
        "The dropout inside cuDNN's recurrent layers has a random state of its own, which seeding again does not set and the "
        "deterministic setting does not govern."
    ),
    snippet=SNIPPET,
    remedy=(
        "Put nn.Dropout between single recurrent layers: its masks come from torch's generator, which `bitproof.Run` saves. "
        "`bitproof prove` on the GPU shows whether it matters."
    ),
    judge=_judge,
)
