"""Train a tiny network that resumes exactly, and saves before it ends when it is told to end."""

import argparse
import signal
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("runs"))
parser.add_argument("--resume", action="store_true")
parser.add_argument("--steps", type=int, default=30)
options = parser.parse_args()
options.out.mkdir(parents=True, exist_ok=True)
last = options.out / "last.pt"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
told_to_end = []
signal.signal(signal.SIGTERM, lambda *_: told_to_end.append(True))
step = 0
if options.resume and last.exists():
    state = torch.load(last)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    step = state["step"]
while step < options.steps and not told_to_end:
    loss = model(torch.randn(16, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 4 == 0 or step == options.steps or told_to_end:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "step": step,
        }
        torch.save(state, last.with_suffix(".tmp"))
        last.with_suffix(".tmp").replace(last)
