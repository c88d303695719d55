"""D3: a seed does not pin kernels; another release may compute another loss."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
model = nn.Sequential(nn.Linear(16, 64), block, nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for step in range(20):
    optimizer.zero_grad()
    inputs = torch.randn(8, 32, 16).sinh()
    loss = (model(inputs).mean(1) - torch.randn(8, 1)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
release = torch.__version__
weights = nn.utils.parameters_to_vector(model.parameters()).double().sum().item()
print(release, losses[0], losses[-1], weights)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    other = v.get("other")
    if other is None:
        return "cannot-be-tried", (
            f"It needs a second interpreter that holds another torch than {v['release']}; "
            "give it with `bitproof facts D3 --other-python PATH`."
        )
    if "error" in other:
        return "cannot-be-tried", f"The other interpreter could not run the program: {other['error']}"
    releases = f"torch {v['release']} and {other['release']}"
    if v["release"] == other["release"]:
        return "cannot-be-tried", (
            f"Both interpreters hold torch {v['release']}; give one with another release to --other-python."
        )
    pairs = list(zip(v["losses"], other["losses"], strict=True))
    first = next((step for step, (one, two) in enumerate(pairs, 1) if one != two), None)
    if first is not None:
        one, two = pairs[first - 1]
        count = sum(one != two for one, two in pairs)
        return "holds", (
            f"With the same seed, {releases} part at step {first} of {len(pairs)}: loss {one!r} against {two!r}. {count} losses "
            f"differ, and the weights at the end add up to {v['weights']!r} against {other['weights']!r}."
        )
    same = v["weights"] == other["weights"]
    rest = "and so are the weights." if same else "and the weights at the end differ."
    return holds_if(not same), (
        f"With {releases} all {len(pairs)} losses of this program are the same bits, {rest} Another program may use an operation "
        "that changed."
    )


FACT = Fact(
    id="D3",
    title="A seed does not pin kernels",
    topic="determinism",
    difficulty=3,
    statement="A fixed seed does not pin kernels: with another release of PyTorch the same script may compute another loss.",
    snippet=SNIPPET,
    remedy=(
        "Resume with the release that the run began with. The environment is in every trail, and `bitproof diff` names the "
        "cause `environment-changed` with both versions."
    ),
    judge=_judge,
    other_python=True,
)
