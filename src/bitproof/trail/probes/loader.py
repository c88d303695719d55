"""Data loaders: what they yield, the sampler's indices behind it, and where an iteration starts."""

import multiprocessing
import weakref
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader

from bitproof.trail.probes.patching import Detach, all_of, when_imported, wrap
from bitproof.trail.recorder import Recorder
from bitproof.trail.records import Sample


def attach(recorder: Recorder) -> Detach:
    """Watch torch's loaders, and torchdata's stateful one from when it is imported."""
    numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def make_iter(original: Callable[..., Any]) -> Callable[..., Any]:
        def iterate(loader: Any) -> Any:
            recorder.event(
                "loader-started" if torch.is_grad_enabled() else "eval-loader-started",
                {"loader": numbers.setdefault(loader, len(numbers) + 1)} | _facts(loader),
            )
            return original(loader)

        return iterate

    def watch_stateful(module: ModuleType) -> Detach:
        # Its iterators are torch's and watched already.
        return wrap(module.StatefulDataLoader, "__iter__", make_iter)

    undo = [
        wrap(DataLoader, "__iter__", make_iter),
        _watch_iterators(recorder),
        when_imported("torchdata.stateful_dataloader.stateful_dataloader", watch_stateful),
    ]
    return all_of(undo)


def _watch_iterators(recorder: Recorder) -> Detach:
    drawn: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()

    def make_reset(original: Callable[..., Any]) -> Callable[..., Any]:
        def reset(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            # An epoch that was broken off leaves indices of batches that never come.
            drawn.pop(iterator, None)
            return original(iterator, *args, **kwargs)

        return reset

    def make_index(original: Callable[..., Any]) -> Callable[..., Any]:
        def next_index(iterator: Any) -> Any:
            index = original(iterator)
            drawn.setdefault(iterator, deque()).append(index)
            return index

        return next_index

    def make_next(original: Callable[..., Any]) -> Callable[..., Any]:
        def following(iterator: Any) -> Any:
            # The state before the fetch: an augmentation draws inside it.
            if torch.is_grad_enabled():
                recorder.loader_asked()
            try:
                batch = original(iterator)
            except StopIteration:
                recorder.loader_had_none()
                raise
            queue = drawn.get(iterator)
            index = queue.popleft() if queue else None
            if torch.is_grad_enabled():
                recorder.loader_batch(batch, _indices(index) if getattr(iterator, "_in_order", True) else None)
            return batch

        return following

    base = torch.utils.data.dataloader._BaseDataLoaderIter  # noqa: SLF001
    return all_of(
        [
            wrap(base, "_reset", make_reset),
            wrap(base, "_next_index", make_index),
            wrap(base, "__next__", make_next),
        ]
    )


def _indices(index: Any) -> list[Sample] | None:
    """Return the samples that a sampler named: indices, or the (epoch, index) pairs of our own loader."""
    if isinstance(index, int):
        return [index]
    if isinstance(index, (list, tuple)) and set(map(type, index)) == {int}:
        return list(index)
    if isinstance(index, list) and set(map(type, index)) == {tuple} and all(map(_is_key, index)):
        return [(epoch, sample) for epoch, sample, *_ in index]
    if isinstance(index, torch.Tensor) and not index.is_floating_point():
        return [int(i) for i in index.reshape(-1).tolist()]
    return None


def _is_key(key: tuple[Any, ...]) -> bool:
    # Our loader adds the count where a batch sampler draws a sample again.
    return len(key) in {2, 3} and set(map(type, key)) == {int}


def _facts(loader: Any) -> dict[str, Any]:
    sampler = getattr(loader, "sampler", None)
    dataset: Any = getattr(loader, "dataset", None)
    return {
        "dataset": type(dataset).__name__,
        "length": len(dataset) if hasattr(dataset, "__len__") else None,
        "sampler": type(sampler).__name__,
        "batch_size": getattr(loader, "batch_size", None),
        "own_generator": getattr(loader, "generator", None) is not None,
        "workers": getattr(loader, "num_workers", 0),
        "start_method": _start_method(loader),
        "persistent_workers": getattr(loader, "persistent_workers", False),
    }


def _start_method(loader: Any) -> str | None:
    if not getattr(loader, "num_workers", 0):
        return None
    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    return str(context.get_start_method())
