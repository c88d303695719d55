"""Order, loader and per-sample seeding, beside the tools that people use, in one run.

    python benchmarks/bench_data.py                       print
    python benchmarks/bench_data.py --write results/data.md   and write the table there
    python benchmarks/bench_data.py --tiny                small sizes, to see that it runs

Each row is measured in a process of its own, so that its peak memory is its own. Grain's row needs Grain.
"""

import argparse
import datetime as dt
import hashlib
import importlib.util
import itertools
import multiprocessing
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from bitproof.data import Loader, Order
from bitproof.data.randomness import SampleGenerators, generators_put_back
from bitproof.data.seeds import seeds_of

Row = tuple[str, str, str]  # what, measured, target


class Rows(Dataset[int]):
    """n rows that cost nothing."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


class Busy(Rows):
    """Rows that take 0.2 ms of work each: work and not waiting, so that a loaded machine slows it as it slows the loader."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self._data = bytes(50_000)
        self._data = bytes(round(50_000 * 200e-6 / best(lambda: hashlib.sha256(self._data), 500)))

    def __getitem__(self, index: int) -> int:
        hashlib.sha256(self._data)
        return index


def best(call: Callable[[], object], repeat: int) -> float:
    """Return the shortest time of a call, in seconds: the machine is shared, and what disturbs only adds."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_mib() -> float:
    """Return the peak memory of this process, in MiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def reset_peak_mib() -> float:
    """Forget the peak so far; return the present memory, in MiB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return peak_mib()


def order_large(scale: int) -> list[Row]:
    """A million indices at once."""
    size, positions = 10**6 // scale, np.arange(10**6 // scale)
    rows: list[Row] = []
    for n in (10**6, 10**12):
        order = Order(n)
        seconds = best(lambda held=order: held.locate(positions), 30)  # type: ignore[misc]
        rows.append((f"Order, n = {n:,}, {size:,} at once", f"{seconds / size * 1e9:.0f} ns an index", "≤ 60 ns"))
    return rows


def order_batch(scale: int) -> list[Row]:
    """A batch of 256."""
    positions, order = np.arange(10**11, 10**11 + 256), Order(10**12)
    seconds = best(lambda: [order.locate(positions) for _ in range(20)], 500 // scale + 2) / 20 / 256
    return [("Order, n = 10^12, 256 at once", f"{seconds * 1e6:.2f} µs an index", "≤ 0.4 µs")]


def order_grain(scale: int) -> list[Row]:
    """Grain's index_shuffle, one index a call (it has no other)."""
    if importlib.util.find_spec("grain") is None:
        return [("Grain index_shuffle", "not installed", "")]
    from grain._src.python.experimental.index_shuffle.python import index_shuffle_module  # noqa: PLC0415

    shuffle, count = index_shuffle_module.index_shuffle, 100_000 // scale
    rows: list[Row] = []
    for rounds in (4, 8):
        seconds = (
            best(lambda r=rounds: [shuffle(i, max_index=10**9, seed=1, rounds=r) for i in range(count)], 3) / count
        )  # type: ignore[misc]
        rows.append((f"Grain index_shuffle, n = 10^9, {rounds} rounds", f"{seconds * 1e6:.2f} µs an index", "(peer)"))
    return rows


def randperm(scale: int) -> list[Row]:
    """What torch's RandomSampler does at the start of an epoch."""
    n, before = 5 * 10**7 // scale, peak_mib()
    start = time.perf_counter()
    order = torch.randperm(n).tolist()
    seconds = time.perf_counter() - start
    del order
    return [(f"torch.randperm({n:,}).tolist()", f"{seconds:.2f} s, +{peak_mib() - before:,.0f} MiB", "(peer)")]


def order_start(scale: int) -> list[Row]:
    """The same for Order: the first batch of an epoch."""
    n, before = 5 * 10**7 // scale, peak_mib()
    start = time.perf_counter()
    Order(n)[n : n + 256]
    seconds = time.perf_counter() - start
    return [
        (f"Order({n:,}), first 256 of an epoch, cold", f"{seconds * 1e3:.2f} ms, +{peak_mib() - before:,.1f} MiB", "")
    ]


def first_batch(scale: int) -> list[Row]:
    """A resume at 10^11 of 10^12 rows: load the state, get the first batch."""
    rows: list[Row] = []
    for size, sample_randomness in ((32, False), (32, True), (256, True)):
        loader = Loader(Rows(10**12), size, shuffle=True, sample_randomness=sample_randomness, fingerprint="known")
        state = {**loader.state_dict(), "position": 10**11}
        next(iter(loader))  # torch's own first-time costs
        before = peak_mib()

        def resume(held: Loader = loader, state: dict[str, Any] = state) -> None:
            held.load_state_dict(state)
            next(iter(held))

        seconds = best(resume, 300 // scale + 2)
        what = f"Loader: load and first batch of {size} at 10^11 of 10^12" + (
            ", seeding each sample" if sample_randomness else ""
        )
        rows.append((what, f"{seconds * 1e3:.2f} ms, +{peak_mib() - before:,.1f} MiB", "≤ 1 ms"))
    return rows


def ours_halfway(scale: int) -> list[Row]:
    """A resume half way through 10^7 rows, ours."""
    n = 10**7 // scale
    before = peak_mib()
    start = time.perf_counter()
    loader = Loader(Rows(n), 100, shuffle=True, fingerprint="known")
    loader.load_state_dict({**loader.state_dict(), "position": n // 2})
    next(iter(loader))
    seconds = time.perf_counter() - start
    return [
        (f"Loader: resume half way through {n:,}, cold", f"{seconds * 1e3:.1f} ms, +{peak_mib() - before:,.1f} MiB", "")
    ]


def torchdata_halfway(scale: int) -> list[Row]:
    """The same, torchdata."""
    from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: PLC0415

    n = 10**7 // scale
    warnings.filterwarnings("ignore")
    interrupted = StatefulDataLoader(Rows(n), batch_size=100, shuffle=True)
    for _ in itertools.islice(interrupted, n // 200):
        pass
    saved = interrupted.state_dict()
    del interrupted
    before = reset_peak_mib()
    start = time.perf_counter()
    loader = StatefulDataLoader(Rows(n), batch_size=100, shuffle=True)
    loader.load_state_dict(saved)
    next(iter(loader))
    seconds = time.perf_counter() - start
    return [
        (
            f"torchdata StatefulDataLoader: resume half way through {n:,}",
            f"{seconds:.2f} s, +{peak_mib() - before:,.0f} MiB",
            "(peer)",
        )
    ]


def seeding(scale: int) -> list[Row]:
    """Setting python's, NumPy's and torch's generators for a sample."""
    samples, repeat = [(0, index) for index in range(256)], 200 // scale + 2

    def batch(draw: Callable[[], object]) -> None:
        generators = SampleGenerators(seeds_of("sample", 0, samples))
        for k in range(256):
            generators.set(k)
            draw()

    with generators_put_back():
        none = best(lambda: batch(int), repeat) / 256
        draws = best(lambda: batch(np.random.random_sample), repeat) / 256
        drawing = best(lambda: [np.random.random_sample() for _ in range(256)], repeat) / 256  # noqa: NPY002
        alone = best(lambda: [torch.manual_seed(k) for k in range(256)], repeat) / 256

    def put_back() -> None:
        with generators_put_back():
            pass

    return [
        ("Seeding a sample that does not draw from NumPy", f"{none * 1e6:.1f} µs", "≤ 9 µs"),
        ("Seeding a sample that draws from NumPy", f"{draws * 1e6 - drawing * 1e6:.1f} µs", "≤ 9 µs"),
        ("torch.manual_seed alone", f"{alone * 1e6:.1f} µs", "(peer)"),
        ("Putting generators back, once a batch", f"{best(put_back, repeat) * 1e6:.0f} µs", ""),
    ]


def overhead(scale: int) -> list[Row]:
    """What the Loader adds to a plain DataLoader a sample, where samples cost nothing: the best batch of many."""
    rows, count = Rows(10**6), 4000 // scale + 2
    batches = {
        "plain": iter(DataLoader(rows, batch_size=32, shuffle=True)),
        "keyed": iter(Loader(rows, 32, shuffle=True, fingerprint="known")),
        "unkeyed": iter(Loader(rows, 32, shuffle=True, fingerprint="known", sample_randomness=False)),
    }
    each = {name: best(lambda held=held: next(held), count) / 32 * 1e6 for name, held in batches.items()}  # type: ignore[misc]
    return [
        (
            "Loader adds to a plain DataLoader, 0 workers",
            f"{each['keyed'] - each['plain']:.1f} µs a sample",
            "≤ 10 µs: 5 % of 0.2 ms",
        ),
        ("the same, sample_randomness=False", f"{each['unkeyed'] - each['plain']:.1f} µs a sample", ""),
    ]


def throughput(scale: int) -> list[Row]:
    """Against a plain DataLoader, samples of 0.2 ms."""
    warnings.filterwarnings("ignore")
    data, rows = Busy(max(64, 1600 // scale)), []
    for workers in (0, 1, 2):
        plain = DataLoader(data, batch_size=32, shuffle=True, num_workers=workers)
        ours = Loader(data, 32, shuffle=True, num_workers=workers, fingerprint="known")
        pairs = []
        for number in range(15 if scale == 1 else 1):  # in pairs, taking turns to be first: the machine is shared
            turn = (plain, ours) if number % 2 else (ours, plain)
            seconds = {held: best(lambda held=held: list(held), 1) for held in turn}  # type: ignore[misc]
            pairs.append(seconds[ours] / seconds[plain] - 1)
        low, middle, high = statistics.quantiles(pairs, n=4) if len(pairs) > 1 else pairs * 3
        rows.append(
            (
                f"Loader against a plain DataLoader, samples of 0.2 ms, {workers} workers",
                f"{middle:+.1%} time (median of {len(pairs)} pairs; half of them {low:+.1%} to {high:+.1%})",
                "≤ +5 %",
            )
        )
    return rows


def bitmap(scale: int) -> list[Row]:
    """Every index of 2·10^8 occurs once in an epoch."""
    n, step = 200_000_033 // scale, 2**22
    order, seen, start = Order(n, seed=1), np.zeros(n, dtype=bool), time.perf_counter()
    for first in range(0, n, step):
        seen[order[first : min(first + step, n)]] = True
    found = int(np.count_nonzero(seen))
    return [(f"Distinct indices in an epoch of {n:,}", f"{found:,} ({time.perf_counter() - start:.0f} s)", f"{n:,}")]


NOTES = """
Reading it:

- The machine is shared: its load average, above, says by how many. Rows that are timed against a peer take turns with it.
- Seeding a sample: half of it is torch's own `manual_seed` and one call of NumPy's SFC64 that fills the states of python's and NumPy's
  generators. Where a sample draws from NumPy, dropping the normal draw that NumPy may have cached takes another 2 to 3 µs.
- The first batch of 256 takes longer than 1 ms where each sample is seeded: it is the seeding of 256 samples, and grows with the
  batch, not with the position. Finding the 256 indices is the row "256 at once".
- What the Loader adds to a sample is the best batch of many, which another process on the machine hardly disturbs; the rows of
  0.2 ms samples below it are whole passes, and are disturbed. With workers, seeding is done in them, beside the training loop.
"""

PARTS = (
    order_large, order_batch, order_grain, order_start, randperm, first_batch, ours_halfway, torchdata_halfway, seeding,
    overhead, throughput, bitmap,
)  # fmt: skip


def in_a_process(part: Callable[[int], list[Row]], scale: int) -> list[Row]:
    """Measure a part in a fresh process."""
    context = multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    process = context.Process(target=_measure, args=(part, scale, answer))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"{part.__name__} failed")
    return list(answer.get())


def _measure(part: Callable[[int], list[Row]], scale: int, answer: Any) -> None:
    answer.put(part(scale))


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="small sizes")
    parser.add_argument("--write", type=Path, help="write the table to this Markdown file")
    options = parser.parse_args()
    lines = [
        "# Data: measured",
        "",
        (
            f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}, {os.cpu_count()} cores of {_processor()} (a shared virtual machine), Python "
            f"{platform.python_version()}, PyTorch {torch.__version__}, NumPy {np.__version__}. "
            f"Load average at the start: {os.getloadavg()[0]:.1f}. By `benchmarks/bench_data.py`, in one run; times are the best of several, memory is the growth of a fresh process's peak."
        ),
        "",
        "| what | measured | target |",
        "|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for part in PARTS:
        for row in in_a_process(part, 1000 if options.tiny else 1):
            lines.append(f"| {' | '.join(row)} |")
            print(lines[-1], flush=True)
    lines.append(NOTES.rstrip())
    if options.write:
        options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    sys.exit(main())
