"""Loaders: generators that their parts hold, workers that share one, and data sets that persistent workers copied."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import fetch as fetching

from bitproof.doctor.watch.generators import attributes_of, generators_of, generators_of_module, state_digest
from bitproof.doctor.watch.holding import Held
from bitproof.doctor.watch.watch import Watch
from bitproof.trail.probes.patching import wrap

_FETCHES = 4
"""Batches of each worker that are looked at."""


def attach(watch: Watch) -> None:
    """Watch the loaders."""
    loaders = _Loaders(watch)
    wrap(DataLoader, "__iter__", loaders.iterating)
    for fetcher in (fetching._MapDatasetFetcher, fetching._IterableDatasetFetcher):  # noqa: SLF001
        wrap(fetcher, "fetch", loaders.fetching)


class _Loaders:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._held = Held(watch)
        self._copied: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self._fetches = 0

    def iterating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def iterate(loader: Any) -> Any:
            if torch.is_grad_enabled():
                self._held.track_loader(loader)
            self._held.look()
            if loader.num_workers and loader.persistent_workers:
                self._compare_dataset(loader)
            return original(loader)

        return iterate

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
            result = original(fetcher, index)
            for (name, generator), state in zip(held, before, strict=True):
                if state_digest(generator) != state:
                    facts = {"dataset": type(fetcher.dataset).__name__, "name": name, "class": type(generator).__name__}
                    self._watch.say("worker-drew", facts | {"worker": info.id, "state": state, "fetch": self._fetches})
            self._fetches += 1
            return result

        return fetch


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
