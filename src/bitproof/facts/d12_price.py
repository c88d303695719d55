"""D12: determinism has a price."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

NOTICEABLE = 1.02
"""Ratio from which a difference is called one: below it, the clock of a busy machine says nothing."""

SNIPPET = """\
import statistics
import time

import torch

torch.set_num_threads(1)
torch.manual_seed(0)
inputs, weight = torch.rand(50_000), torch.zeros(())


def seconds(deterministic, fill=True):
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    begun = time.perf_counter()
    for _ in range(20):
        room = torch.empty(500_000)  # for the longest batch; the setting fills all of it first
        batch = torch.mul(inputs, weight - 1, out=room[: len(inputs)])
        weight.sub_(batch.mean(), alpha=0.1)
    return (time.perf_counter() - begun) / 20


seconds(True), seconds(False)  # to warm up
rounds = [(seconds(False), seconds(True), seconds(True, fill=False)) for _ in range(15)]  # alternating
without, with_it = (1 / statistics.median(side) for side in list(zip(*rounds))[:2])  # steps a second
ratios = sorted(slow / fast for fast, slow, _ in rounds)
ratio = statistics.median(ratios)
ratio_unfilled = statistics.median(other / fast for fast, _, other in rounds)
print(f"{without:.0f} steps/s without, {with_it:.0f} with: {ratio:.2f} times the time; unfilled {ratio_unfilled:.2f}")
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    middle = len(v["ratios"]) // 4
    seen = (
        f"{v['without']:,.0f} steps a second without the deterministic setting, {v['with_it']:,.0f} with it: {v['ratio']:.2f} times "
        f"the time (middle half of {len(v['ratios'])} rounds: {v['ratios'][middle]:.2f} to {v['ratios'][-1 - middle]:.2f}), and "
        f"{v['ratio_unfilled']:.2f} without its filling of fresh memory. Another script has another price."
    )
    return holds_if(v["ratio"] > NOTICEABLE), seen


FACT = Fact(
    id="D12",
    title="Determinism has a price",
    topic="determinism",
    difficulty=1,
    statement="The deterministic setting has a price that depends on the script; know it before you pay.",
    snippet=SNIPPET,
    remedy="Measure it on your own script before you decide: `bitproof price` runs it with and without, alternating.",
    judge=_judge,
)
