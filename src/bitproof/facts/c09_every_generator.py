"""C9: the states of all generators must be saved."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import random

import numpy as np
import torch

own = torch.Generator()
sources = {  # how to draw, read the state, put it back
    "random": (random.random, random.getstate, random.setstate),
    "numpy": (np.random.rand, np.random.get_state, np.random.set_state),
    "torch": (lambda: torch.rand(1).item(), torch.get_rng_state, torch.set_rng_state),
    "a torch.Generator": (lambda: torch.rand(1, generator=own).item(), own.get_state, own.set_state),
}


def draw():
    return {name: take() for name, (take, _, _) in sources.items()}


def seed():
    random.seed(0), np.random.seed(0), torch.manual_seed(0), own.manual_seed(0)


def differing(restored):  # the streams that differ after a resume that puts these states back
    seed()
    draw()
    states = {name: state() for name, (_, state, _) in sources.items()}
    uninterrupted = draw()
    seed()  # a new process
    for name in restored:
        _, _, put_back = sources[name]
        put_back(states[name])
    resumed = draw()
    return [name for name in sources if resumed[name] != uninterrupted[name]]


seeds_alone, all_states = differing([]), differing(list(sources))
one_left_out = {name: differing([other for other in sources if other != name]) for name in sources}
print(seeds_alone, all_states, one_left_out)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    missing = v["one_left_out"]
    exactly = all(found == [name] for name, found in missing.items())
    seen = (
        f"After a resume with the seeds alone {len(v['seeds_alone'])} of {len(missing)} streams differ; with all states "
        f"{len(v['all_states'])}; with one state left out, that one, for each of {', '.join(missing)}"
        f"{'' if exactly else ' (not in every case)'}."
    )
    return holds_if(exactly and not v["all_states"] and len(v["seeds_alone"]) == len(missing)), seen


FACT = Fact(
    id="C9",
    title="States, not seeds, of every generator",
    topic="checkpoints",
    difficulty=2,
    statement="The states of generators must be saved, not only their seeds, and for every generator in use.",
    snippet=SNIPPET,
    remedy=(
        "`bitproof.Run` saves python's, NumPy's, torch's and each device's generator, and those that it finds in what you register. "
        "`bitproof prove` names the generator that did not come back."
    ),
    judge=_judge,
)
