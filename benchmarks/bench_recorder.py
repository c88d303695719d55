"""What recording costs: step time with and without, in one process, in alternating blocks.

Each block takes a fixed number of steps. The blocks alternate plain, recorded, plain, recorded, …; the ratio of each
neighbouring pair is taken, and the median of the ratios is the figure, so that a machine whose speed drifts does not
decide it. Run it with nothing else on the machine:

    python benchmarks/bench_recorder.py
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import bitproof


def mlp() -> Callable[[], None]:
    """Return one step of a small MLP: 3 layers, dropout, AdamW, batches of 64 from a loader; about 2 ms."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randint(0, 10, (4096,)))
    loader = torch.utils.data.DataLoader(data, batch_sampler=_Batches(4096, 64), collate_fn=None)
    model = nn.Sequential(
        nn.Linear(64, 384), nn.ReLU(), nn.Dropout(0.1), nn.Linear(384, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batches = _endless(loader)

    def step() -> None:
        inputs, targets = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def transformer() -> Callable[[], None]:
    """Return one step of a transformer encoder of 10.6 million parameters, sequences of 128 × 16."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(384, 6, 4 * 384, batch_first=True)
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(256, 384),
            "body": nn.TransformerEncoder(layer, 6, enable_nested_tensor=False),
            "head": nn.Linear(384, 256),
        }
    )

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.parts["head"](self.parts["body"](self.parts["embed"](tokens)))

    whole = Whole()
    optimizer = torch.optim.AdamW(whole.parameters(), fused=True)

    def step() -> None:
        tokens = torch.randint(0, 256, (16, 129))
        optimizer.zero_grad()
        logits = whole(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


class _Batches:
    def __init__(self, length: int, size: int) -> None:
        self._length, self._size = length, size

    def __iter__(self):  # noqa: ANN204
        for start in range(0, self._length, self._size):
            yield list(range(start, start + self._size))

    def __len__(self) -> int:
        return self._length // self._size


def _endless(loader: torch.utils.data.DataLoader):  # noqa: ANN202
    while True:
        yield from loader


def measure(make: Callable[[], Callable[[], None]], steps: int, pairs: int) -> tuple[float, list[float]]:
    """Return the plain step's median time in seconds and each pair's ratio of recorded to plain time."""
    step = make()
    for _ in range(max(3, steps // 10)):
        step()
    plain, ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(pairs):
            before = _block(step, steps)
            with bitproof.recording(Path(folder) / f"{i}.trail"):
                step()  # opening the file is not the price of a step
                recorded = _block(step, steps)
            after = _block(step, steps)
            plain += [before, after]
            ratios.append(2 * recorded / (before + after))
    return statistics.median(plain), ratios


def _block(step: Callable[[], None], steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["mlp", "transformer"])
    parser.add_argument("--tiny", action="store_true", help="a few steps, to see that it runs")
    options = parser.parse_args()
    cases = {"mlp": (mlp, 200, 11, 1.20), "transformer": (transformer, 3, 5, 1.02)}
    for name, (make, steps, pairs, target) in cases.items():
        if options.only in (None, name):
            plain, ratios = measure(make, 2 if options.tiny else steps, 1 if options.tiny else pairs)
            ratio = statistics.median(ratios)
            print(
                f"{name}: plain step {plain * 1e3:.2f} ms, recorded / plain = {ratio:.3f} "
                f"(median of {len(ratios)}, {min(ratios):.3f} to {max(ratios):.3f}), target ≤ {target:.2f}"
            )


if __name__ == "__main__":
    main()
