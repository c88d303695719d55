"""C5: seeding again replays the stream."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import torch

torch.manual_seed(0)
start = torch.rand(4).tolist()
state = torch.get_rng_state()  # what a checkpoint should hold
uninterrupted = torch.rand(4).tolist()

torch.manual_seed(0)  # what many scripts do when they resume
seeded_again = torch.rand(4).tolist()
torch.set_rng_state(state)
restored = torch.rand(4).tolist()
print(start, uninterrupted, seeded_again, restored)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    replayed = v["seeded_again"] == v["start"]
    continued = v["restored"] == v["uninterrupted"]
    number = "{:.4f}".format
    seen = (
        f"The next draw of the uninterrupted run was {number(v['uninterrupted'][0])}; after seeding again it was "
        f"{number(v['seeded_again'][0])}, the first of the run ({number(v['start'][0])}); with the state restored "
        f"{number(v['restored'][0])}."
    )
    return holds_if(replayed and continued and v["seeded_again"] != v["uninterrupted"]), seen


FACT = Fact(
    id="C5",
    title="Seeding again replays the stream",
    topic="checkpoints",
    difficulty=2,
    statement="Seeding again at resume does not continue the random stream: it replays it from the start.",
    snippet=SNIPPET,
    remedy=(
        "Save and restore the generators' states; `bitproof.Run` does, and seeds nothing again. `bitproof prove` names "
        "`rng-reseeded` and the line that seeds."
    ),
    judge=_judge,
)
