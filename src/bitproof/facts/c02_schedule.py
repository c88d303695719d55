"""C2: what a schedule that was not saved does after a resume. The usual answer is only half right."""

from collections.abc import Sequence
from itertools import groupby

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = """\
import copy

import torch
from torch.optim.lr_scheduler import LambdaLR, StepLR

schedules = {
    "StepLR": lambda optimizer: StepLR(optimizer, step_size=6, gamma=0.5),
    "LambdaLR": lambda optimizer: LambdaLR(optimizer, lambda n: 0.5 ** (n // 6)),
}


def new():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def rates(optimizer, schedule, steps):  # the rate that each step is taken with
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def after_resume(make, at, load):  # the schedule is new; so is the optimizer, if it is not loaded
    first = new()
    first_schedule = make(first)
    rates(first, first_schedule, at)
    saved = copy.deepcopy(first.state_dict())
    optimizer = new()
    if load == "loaded, then schedule made":
        optimizer.load_state_dict(saved)
    schedule = make(optimizer)
    if load == "schedule made, then loaded":
        optimizer.load_state_dict(saved)
    return {"right": rates(first, first_schedule, 9), "found": rates(optimizer, schedule, 9)}


loads = ("loaded, then schedule made", "schedule made, then loaded", "not loaded")
found = {
    name: {f"at {at}": {load: after_resume(make, at, load) for load in loads} for at in (12, 15)}
    for name, make in schedules.items()
}
for name in schedules:
    print(name, found[name]["at 15"])
"""
LOADED, BUILT_FIRST, NOT_LOADED = "loaded, then schedule made", "schedule made, then loaded", "not loaded"


def runs(rates: Sequence[float]) -> str:
    """Write rates such as ``0.025 ×5, 0.0125 ×3``."""
    return ", ".join(f"{rate:g} ×{len(list(same))}" for rate, same in groupby(rates))


def _judge(v: Values) -> tuple[Verdict, str]:
    step = v["found"]["StepLR"]["at 15"]
    function = v["found"]["LambdaLR"]["at 15"]
    # The claim as it is usually told: without the schedule's state, training goes on at the base rate.
    kinds = [kind["at 15"][load]["found"][0] for kind in v["found"].values() for load in (LOADED, BUILT_FIRST)]
    told = all(rate == 0.1 for rate in kinds)
    seen = (
        f"After a resume at step 15 the right rates are {runs(step[LOADED]['right'])}. With the optimizer loaded, a new StepLR "
        f"gives {runs(step[LOADED]['found'])}; a new LambdaLR {runs(function[LOADED]['found'])}, or "
        f"{runs(function[BUILT_FIRST]['found'])} if made before the optimizer was loaded. With nothing loaded: "
        f"{runs(step[NOT_LOADED]['found'])} and {runs(function[NOT_LOADED]['found'])}."
    )
    return holds_if(told), seen


FACT = Fact(
    id="C2",
    title="A schedule that was not saved",
    topic="checkpoints",
    difficulty=2,
    statement=(
        "If StepLR was not saved and the rate had fallen from 0.1 to 0.025, training goes on at the base rate 0.1 after a resume. "
        "(This is the usual answer. Where the optimizer was loaded, it is wrong for StepLR: the rate stays and later drops at the "
        "wrong step. It is right for schedules that compute the rate from their own counter, such as LambdaLR.)"
    ),
    snippet=SNIPPET,
    remedy=(
        "Save and load the schedule too, or register it with `bitproof.Run`. `bitproof prove` compares to the end, so it also "
        "finds a rate that is right at first and drops at the wrong step (`schedule-restarted`)."
    ),
    judge=_judge,
)
