"""Save, or resume, a run with 1 GB of weights and moments; print how far anonymous memory rose while it was put back."""

import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn

from bitproof.run import Run

LARGEST = 4 * 2048**2
"""Bytes of the largest tensor."""


def build(fill: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Make a model of 20 layers, and an optimizer that has taken a step."""
    model = nn.ModuleList([nn.Linear(2048, 2048, bias=False) for _ in range(20)])
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, fill)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def anonymous() -> int:
    """Return this process's anonymous memory in bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def main(what: str, folder: str) -> None:
    """Save, or resume and print the rise of the peak, and a number that tells the weights."""
    torch.set_num_threads(1)
    torch.manual_seed(0 if what == "save" else 1)
    model, optimizer = build(0.5 if what == "save" else 0.25)
    before, peak, done = anonymous(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, anonymous())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with Run(folder, model=model, optimizer=optimizer, save_every=None, background=False) as run:
        run.restore()
        done.set()
        watcher.join()
        if what == "save":
            run.save()
    moments = sum(float(state["exp_avg"].double().sum()) for state in optimizer.state.values())
    print(peak - before, sum(float(p.detach().double().sum()) for p in model.parameters()), moments)


if __name__ == "__main__":
    main(*sys.argv[1:])
