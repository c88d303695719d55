"""Loaders: generators that their parts hold, what epochs draw, workers that share, and data sets that persistent workers copied."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import fetch as fetching

from bitproof.compare.mersenne import shift
from bitproof.doctor.watch.evaluating import SEED_DRAWS
from bitproof.doctor.watch.generators import attributes_of, generators_of, generators_of_module, state_digest
from bitproof.doctor.watch.holding import Held
from bitproof.doctor.watch.watch import Watch
from bitproof.trail.generators import Generators, TorchReader, torch_state
from bitproof.trail.probes.patching import wrap
from bitproof.trail.site import user_line

_FETCHES = 4
"""Batches of each worker that are looked at."""
_MOST_STARTS = 1_000


def attach(watch: Watch) -> None:
    """Watch the loaders."""
    loaders = _Loaders(watch)
    wrap(DataLoader, "__iter__", loaders.iterating)
    base = torch.utils.data.dataloader._BaseDataLoaderIter  # noqa: SLF001
    wrap(base, "_next_index", loaders.indexing)
    watch.on_step.append(loaders.step_taken)
    for fetcher in (fetching._MapDatasetFetcher, fetching._IterableDatasetFetcher):  # noqa: SLF001
        wrap(fetcher, "fetch", loaders.fetching)


class _Loaders:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._held = Held(watch)
        self._copied: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._fetches = 0
        self._starts = 0
        self._torch = TorchReader()
        self._drew: weakref.WeakKeyDictionary[Any, str | None] = weakref.WeakKeyDictionary()
        """Iterators whose sampler drew from torch's generator since the last step, and where."""
        self._current: weakref.ref[Any] | None = None
        """The iterator that was asked last."""
        self._seeds_workers = False
        """The workers of the loader that was started last draw from what torch's generator seeded."""
        self._again = False
        """That loader was started after the first step; a worker does not know."""

    def iterating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def iterate(loader: Any) -> Any:
            if torch.is_grad_enabled():
                self._held.track_loader(loader)
            self._held.look()
            self._again = self._watch.step > 0
            self._seeds_workers = (
                loader.generator is None and loader.worker_init_fn is None and not hasattr(loader, "state_dict")
            )
            if loader.num_workers and loader.persistent_workers:
                self._compare_dataset(loader)
            before, state = self._torch.read(), torch_state()
            iterator = original(loader)
            after = self._torch.read()
            if self._starts < _MOST_STARTS and shift(state, torch_state(), 2 * SEED_DRAWS) == SEED_DRAWS:
                self._starts += 1
                self._watch.say("loader-seeded", {"before": before, "after": after})
            return iterator

        return iterate

    def indexing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_index(iterator: Any) -> Any:
            # torchdata's iterators keep the order's generator in their own state.
            if not torch.is_grad_enabled() or hasattr(iterator, "state_dict"):
                return original(iterator)
            self._current = weakref.ref(iterator)
            before = self._torch.read()
            index = original(iterator)
            if self._torch.read() != before:
                self._drew[iterator] = user_line()
            return index

        return next_index

    def step_taken(self, step: int) -> None:
        """Say that the order of the step's samples was drawn from torch's generator, in the first epoch and in a later one."""
        iterator = self._current() if self._current is not None else None
        if iterator in self._drew:
            self._watch.say_once("epoch-drew", {"by": "sampler", "again": step > 1}, self._drew[iterator])
        self._drew.clear()

    def _compare_dataset(self, loader: DataLoader[Any]) -> None:
        now = _plain_attributes(loader.dataset)
        before = self._copied.setdefault(loader, now)
        changed = sorted(name for name in now if name in before and now[name] != before[name])
        if changed:
            facts = {"dataset": type(loader.dataset).__name__, "names": changed}
            self._watch.say_once("dataset-changed", facts)

    def fetching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def fetch(fetcher: Any, index: Any) -> Any:
            info = get_worker_info()
            if info is None or self._fetches >= _FETCHES:
                return original(fetcher, index)
            held = [
                *generators_of(fetcher.dataset, "dataset"),
                *generators_of(fetcher.collate_fn, "collate_fn"),
                *generators_of_module(fetcher.dataset),
            ]
            before = [state_digest(generator) for _, generator in held]
            given = _states() if self._seeds_workers else {}
            result = original(fetcher, index)
            # A stream that only goes on was not seeded anew for each sample: it follows from the loader's seed.
            if given and any(shift(given[name], state) for name, state in _states().items() if name in given):
                self._watch.say_once("epoch-drew", {"by": "workers", "again": self._again})
            for (name, generator), state in zip(held, before, strict=True):
                if state_digest(generator) != state:
                    facts = {"dataset": type(fetcher.dataset).__name__, "name": name, "class": type(generator).__name__}
                    self._watch.say("worker-drew", facts | {"worker": info.id, "state": state, "fetch": self._fetches})
            self._fetches += 1
            return result

        return fetch


def _states() -> dict[str, bytes]:
    """Return the states of this process's generators, as a trail keeps them."""
    found: dict[str, bytes] = {}

    def keep(name: str, _digest: int, state: bytes) -> None:
        found[name] = state

    Generators(keep).read()
    return found


def _plain_attributes(dataset: Any) -> dict[str, Any]:
    """Return the plain values that a data set holds, and those of the one that it wraps."""
    found: dict[str, Any] = {}
    path = ""
    for _ in range(5):
        attributes = attributes_of(dataset)
        plain = {f"{path}{key}": value for key, value in attributes.items() if type(value) in {bool, int, float, str}}
        found |= plain
        dataset, path = attributes.get("dataset"), f"{path}dataset."
        if dataset is None:
            break
    return found
