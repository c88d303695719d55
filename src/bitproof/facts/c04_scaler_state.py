"""C4: what a gradient scaler's state holds."""

from bitproof.facts.fact import Fact, Values, Verdict, holds_if

KEYS = ["scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"]

SNIPPET = """\
import torch

cuda = torch.cuda.is_available()
enabled = list(torch.amp.GradScaler("cpu").state_dict())
disabled = list(torch.amp.GradScaler("cpu", enabled=False).state_dict())
on_cuda = list(torch.amp.GradScaler("cuda").state_dict())  # disables itself where there is no such device
print(enabled, disabled, on_cuda)
"""


def _judge(v: Values) -> tuple[Verdict, str]:
    where = "a CUDA device" if v["cuda"] else "no CUDA device"
    seen = (
        f"An enabled scaler's state holds {', '.join(v['enabled'])}; a disabled one's has {len(v['disabled'])} entries, and so many "
        f'has GradScaler("cuda") here, where there is {where}: {len(v["on_cuda"])}.'
    )
    return holds_if(sorted(v["enabled"]) == sorted(KEYS) and not v["disabled"]), seen


FACT = Fact(
    id="C4",
    title="What a gradient scaler saves",
    topic="checkpoints",
    difficulty=1,
    statement=(
        "`GradScaler.state_dict()` holds scale, growth_factor, backoff_factor, growth_interval and _growth_tracker, and nothing "
        "else; a disabled scaler's is an empty dict."
    ),
    snippet=SNIPPET,
    remedy=(
        "Register the scaler with `bitproof.Run`: it names a scaler that was forgotten before the first save. "
        "`bitproof prove` names `scaler-not-restored`."
    ),
    judge=_judge,
)
