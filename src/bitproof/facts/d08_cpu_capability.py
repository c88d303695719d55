"""D8: the vector unit of the CPU changes results."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

SNIPPET = '''\
import os
import subprocess
import sys

program = """
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
numbers = torch.randn(1_000_000)
print(torch.backends.cpu.get_cpu_capability(), numbers.sum().item(), numbers.exp().sum().item())
"""


def start(**setting):
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | setting)


started = [start(), start(ATEN_CPU_CAPABILITY="default")]
best, plain = (process.communicate()[0].split() for process in started)
print(best, plain)
'''


def _judge(v: Values) -> tuple[Verdict, str]:
    best, plain = v["best"], v["plain"]
    if len(best) != 3 or len(plain) != 3:
        return "cannot-be-tried", "One of the two interpreters that were started ended with an error."
    if best[0] == plain[0]:
        return "cannot-be-tried", f"This CPU offers only one capability to PyTorch: {best[0]}."
    same = [one == two for one, two in zip(best[1:], plain[1:], strict=True)]
    seen = (
        f"With {best[0]} the same 1,000,000 numbers add up to {best[1]} and their exponentials to {best[2]}; "
        f"with {plain[0]} to {plain[1]} and {plain[2]}."
    )
    return holds_if(not all(same)), seen


FACT = Fact(
    id="D8",
    title="The CPU's vector unit changes results",
    topic="determinism",
    difficulty=2,
    statement=(
        "The vector unit that PyTorch finds in a CPU (AVX2, AVX512, none) changes results: the same script ends in other bits on "
        "another model of CPU."
    ),
    snippet=SNIPPET,
    remedy=(
        "Resume on the same kind of CPU, or set `ATEN_CPU_CAPABILITY` to what all your machines have. It is in every trail, and "
        "`bitproof diff` names a change (`environment-changed`)."
    ),
    judge=_judge,
)
