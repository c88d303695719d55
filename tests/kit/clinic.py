"""Scripts that the doctor examines, each in a fork of the test process, where torch is imported already."""

import os
import random
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from bitproof.doctor.agent import watch_process
from bitproof.doctor.evidence import Evidence
from bitproof.doctor.examine import find, first_processes, gather
from bitproof.doctor.hazard import Hazard
from bitproof.trail.attach import attach
from bitproof.trail.reader import read_trail
from bitproof.trail.settings import Settings
from kit.live import TORCH_DEFAULT_SEED, _in_child

MARK = "# HERE"
RIGHT = """\
import os
import random
import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

torch.set_num_threads(1)
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
words = sorted(set("the cat sat on the mat".split()))


class Noisy(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(32, 6), torch.randint(3, (32,))
        self.epoch = 0

    def __len__(self):
        return 32

    def __getitem__(self, i):
        return self.x[i] + np.random.normal(scale=0.1), self.y[i]


data = Noisy()
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
loader = DataLoader(data, 8, shuffle=True)
held_out = DataLoader(TensorDataset(data.x, data.y), 8)


def forward(inputs):
    return model(inputs)


def save(done):
    state = {
        "done": done,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": scaler.state_dict(),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
    }
    torch.save(state, "last.tmp")
    os.replace("last.tmp", "last.pt")


def validate():
    model.eval()
    with torch.no_grad():
        for inputs, _ in held_out:
            model(inputs)
    model.train()


done = 0
for epoch in range(3):
    data.shown = epoch
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(forward(inputs.float()), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scheduler.step()
        done += 1
        if done % 3 == 0:
            save(done)
    validate()
"""


@dataclass(frozen=True)
class Plant:
    """A change that makes a right script a wrong one.

    Args:
        code: the hazard that it plants.
        changes: text of the right script, and what comes in its place.
        ranks: how many processes train.
    """

    code: str
    changes: tuple[tuple[str, str], ...]
    ranks: int = 1

    @property
    def script(self) -> str:
        """The wrong script."""
        text = RIGHT
        for old, new in self.changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text


PLANTED = Plant(
    "scheduler-not-saved",
    (
        ('        "scheduler": scheduler.state_dict(),\n', ""),
        ("StepLR(optimizer, 5)", "StepLR(optimizer, 5)  # HERE"),
    ),
).script
"""A script with one hazard."""


@dataclass
class Clinic:
    """Examines training below one folder, with the real recorder and the real watch.

    Args:
        folder: for scripts, trails and notes; the current folder of what is run.
    """

    folder: Path
    _count: int = field(default=0, init=False)

    def examine(self, script: str, *, ranks: int = 1) -> list[Hazard]:
        """Run a script that is written to ``train.py``, and return what was found."""
        return find(self.watch(self.running(script), ranks=ranks))

    def running(self, script: str) -> Callable[[], object]:
        """Write a script to ``train.py``, and return what runs it in a child."""
        path = self.folder / "train.py"
        path.write_text(script)

        def work() -> None:
            os.chdir(self.folder)
            sys.argv = [str(path)]
            runpy.run_path(str(path), run_name="__main__")

        return work

    def watch(self, work: Callable[[], object], *, ranks: int = 1) -> Evidence:
        """Run a function in a process of its own, a rank after another, and return what is known of it."""
        self._count += 1
        control, trail = self.folder / f"control-{self._count}", self.folder / f"trail-{self._count}"
        control.mkdir()
        trail.mkdir()
        for rank in range(ranks):

            def child(rank: int = rank) -> None:
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
                torch.manual_seed(TORCH_DEFAULT_SEED)
                random.seed()
                np.random.seed()  # noqa: NPY002
                recorder, detach = attach(Settings(trail))
                watch_process(recorder, control)
                work()
                detach()

            status = _in_child(child, control / "log")
            assert status == 0, (control / "log").read_text()
        return gather(first_processes(read_trail(trail)), control)


def line_of(script: str, mark: str = MARK) -> str:
    """Return ``train.py:N`` of the one marked line."""
    (number,) = [i for i, line in enumerate(script.splitlines(), 1) if line.endswith(mark)]
    return f"train.py:{number}"


def codes(hazards: Sequence[Hazard]) -> list[str]:
    """Return the codes."""
    return [hazard.code for hazard in hazards]
