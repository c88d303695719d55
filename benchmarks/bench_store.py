"""What a checkpoint costs: saving, saving again, blocking the loop, loading; beside what others need for the same.

The state is that of a transformer with AdamW: weights and two moments for each, of very different sizes. Everything is
measured in one run, in rounds: each round does every way once, in an order that changes; a ratio is taken within a
round, and the median of the ratios is the figure, so that a machine whose speed drifts does not decide it. Every write
ends with an fsync. Run it with nothing else on the machine:

    python benchmarks/bench_store.py
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from bitproof.fingerprint import view_bytes
from bitproof.store import BackgroundSaver, Keep, Store, System

State = dict[str, torch.Tensor]


def make_state(width: int, layers: int, vocabulary: int) -> State:
    """Return weights and AdamW moments of a transformer, float32."""
    shapes = {"embed": (vocabulary, width)}
    for i in range(layers):
        shapes |= {
            f"layers.{i}.attention": (3 * width, width),
            f"layers.{i}.attention.bias": (3 * width,),
            f"layers.{i}.out": (width, width),
            f"layers.{i}.up": (4 * width, width),
            f"layers.{i}.up.bias": (4 * width,),
            f"layers.{i}.down": (width, 4 * width),
            f"layers.{i}.norm": (width,),
        }
    kinds = ("weight", "exp_avg", "exp_avg_sq")
    state = {f"{kind}/{name}": torch.randn(shape) for kind in kinds for name, shape in shapes.items()}
    return state | {f"step/{name}": torch.tensor(1.0) for name in shapes}


def change(state: State) -> None:
    """Change every tensor, as a step of training does."""
    for tensor in state.values():
        tensor.add_(1.0)


def sync(path: Path) -> None:
    """Make a file, or every file in a folder, durable."""
    for file in [path] if path.is_file() else [*path.rglob("*"), path]:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def write_raw(state: State, path: Path) -> None:
    """Write the bytes of the tensors one after another, and fsync."""
    with path.open("wb", buffering=0) as file:
        for tensor in state.values():
            data, done = memoryview(view_bytes(tensor)).cast("B"), 0
            while done < len(data):
                done += file.write(data[done : done + (16 << 20)])
        os.fsync(file.fileno())


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that something takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def rounds(ways: dict[str, Callable[[], object]], count: int, before: Callable[[], object]) -> dict[str, list[float]]:
    """Time every way once a round, each round in another order; the first round warms up and does not count."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for i in range(count + 1):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            before()
            seconds = timed(ways[name])
            if i:
                times[name].append(seconds)
    return times


def show(title: str, times: dict[str, list[float]], reference: str, size: int) -> None:
    """Print each way's median time, rate, and ratio of the reference's to it in the same round."""
    print(f"\n{title}")
    for name, seconds in times.items():
        ratios = sorted(ours / theirs for ours, theirs in zip(times[reference], seconds, strict=True))
        median = statistics.median(seconds)
        print(
            f"  {name:34} {median * 1e3:9.1f} ms {size / median / 1e9:7.2f} GB/s   {reference} / this = "
            f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


def bench_commit(state: State, folder: Path, count: int) -> None:
    """Save a state in which everything changed."""
    size = sum(tensor.nbytes for tensor in state.values())
    store = Store(folder / "store")
    steps = iter(range(1 << 30))

    def distributed() -> None:
        dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)
        sync(folder / "dcp")

    def pickled() -> None:
        torch.save(state, folder / "state.pt")
        sync(folder / "state.pt")

    def safetensors() -> None:
        save_file(state, folder / "state.safetensors")
        sync(folder / "state.safetensors")

    def fresh() -> None:
        change(state)
        store.prune(Keep(1))
        for path in folder.iterdir():
            if path.name != "store":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        os.sync()  # what is removed is given back to the disk now, and not during the next way

    ways = {
        "bitproof": lambda: store.save(b"{}", state, step=next(steps)),
        "raw write + fsync": lambda: write_raw(state, folder / "raw"),
        "torch.save + fsync": pickled,
        "safetensors.save_file + fsync": safetensors,
        "torch.distributed.checkpoint.save": distributed,
    }
    show(
        "Commit, all tensors changed (target: ≤ 1.15 × raw, ≤ 1.00 × the others)",
        rounds(ways, count, fresh),
        "bitproof",
        size,
    )
    store.close()


def bench_again(state: State, folder: Path) -> None:
    """Save a state again, of which a tenth of the bytes changed."""
    with Store(folder / "again") as store:
        first = store.save(b"{}", state, step=1)
        changed, budget = 0, sum(tensor.nbytes for tensor in state.values()) // 10
        for tensor in sorted(state.values(), key=lambda tensor: tensor.nbytes):
            if changed + tensor.nbytes <= budget:
                tensor.add_(1.0)
                changed += tensor.nbytes
        before = _size(folder / "again")
        seconds = timed(lambda: store.save(b"{}", state, step=2))
        written = _size(folder / "again") - before
    print(
        f"\nSaved again, {changed / first.size:.1%} of the bytes changed: {written / first.size:.1%} written "
        f"in {seconds * 1e3:.1f} ms (target ≤ 11 %)"
    )


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def bench_blocked(state: State, folder: Path, count: int) -> None:
    """Time how long the loop is blocked by a save in the background."""
    size = sum(tensor.nbytes for tensor in state.values())
    buffers = {name: torch.empty_like(tensor).fill_(0) for name, tensor in state.items()}
    store = Store(folder / "background")
    saver = BackgroundSaver(store, keep=Keep(1))
    steps = iter(range(1 << 30))
    pending: list[object] = []

    def copy() -> None:
        for name, tensor in state.items():
            buffers[name].copy_(tensor)

    def settle() -> None:
        saver.wait()
        for future in pending:
            future.result()  # type: ignore[attr-defined]
        pending.clear()
        shutil.rmtree(folder / "async", ignore_errors=True)
        change(state)

    def distributed() -> None:
        pending.append(dcp.async_save(state, checkpoint_id=folder / "async", no_dist=True))

    cold = timed(lambda: saver.save(b"{}", state, step=next(steps)))
    ways = {
        "bitproof": lambda: saver.save(b"{}", state, step=next(steps)),
        "one warm copy of the state": copy,
        "dcp.async_save": distributed,
    }
    times = rounds(ways, count, settle)
    settle()
    show(
        f"Loop blocked (target: ≤ 1.3 × a copy, ≤ 1.00 × async_save); first save: {cold * 1e3:.1f} ms",
        times,
        "bitproof",
        size,
    )
    saver.close()
    store.close()


def bench_load(state: State, folder: Path, count: int) -> None:
    """Load a state into existing tensors, every bit verified."""
    size = sum(tensor.nbytes for tensor in state.values())
    torch.save(state, folder / "load.pt")
    store = Store(folder / "load")
    store.save(b"{}", state, step=1)

    def verified() -> None:
        checkpoint = store.latest(verify=False)
        assert checkpoint is not None
        checkpoint.load_into(state)

    def pickled() -> None:
        for name, tensor in torch.load(folder / "load.pt", weights_only=True).items():
            state[name].copy_(tensor)

    ways = {
        "bitproof, verified, in place": verified,
        "torch.load": lambda: torch.load(folder / "load.pt", weights_only=True),
        "torch.load, then in place": pickled,
    }
    show("Load (target: ≤ 1.5 × torch.load)", rounds(ways, count, lambda: None), "bitproof, verified, in place", size)
    opened = min(timed(lambda: store.open(1)) for _ in range(5))
    print(f"  opened lazily in {opened * 1e3:.2f} ms (target ≤ 20 ms)")
    store.close()


def bench_many(folder: Path, count: int) -> None:
    """Find the latest of many checkpoints, and list them, in a store that was just opened."""

    class Quick(System):
        def fsync(self, descriptor: int) -> None:
            """Do nothing: writing them is not what is measured."""

    tensors = {f"layer.{i}.weight": torch.zeros(10) for i in range(20)}
    with Store(folder, system=Quick()) as store:
        for step in range(count):
            tensors["layer.3.weight"].fill_(step)
            store.save(b"{}", tensors, step=step, facts={"loss": 1.0})
    latest = statistics.median(timed(Store(folder).latest) for _ in range(7))
    listed = statistics.median(timed(Store(folder).checkpoints) for _ in range(7))
    print(
        f"\n{count} checkpoints: latest {latest * 1e3:.1f} ms (target ≤ 20 ms), list {listed * 1e3:.1f} ms (target ≤ 200 ms)"
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a small state and one round, to see that it runs")
    parser.add_argument("--only", choices=["commit", "again", "blocked", "load", "many"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; by default the temporary one")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # torch.distributed.checkpoint warns that it runs in one process
    torch.manual_seed(0)
    state = make_state(32, 2, 100) if options.tiny else make_state(768, 4, 20_000)
    size = sum(tensor.nbytes for tensor in state.values())
    print(f"{len(state)} tensors, {size / 1e9:.3f} GB; torch {torch.__version__}, {torch.get_num_threads()} threads")
    count = 1 if options.tiny else options.rounds
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for what, action in {
            "commit": lambda folder: bench_commit(state, folder, count),
            "again": lambda folder: bench_again(state, folder),
            "blocked": lambda folder: bench_blocked(state, folder, count),
            "load": lambda folder: bench_load(state, folder, count),
            "many": lambda folder: bench_many(folder, 10 if options.tiny else 1000),
        }.items():
            if options.only in {None, what}:
                folder = Path(name) / what
                folder.mkdir()
                action(folder)
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
