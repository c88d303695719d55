"""A data set whose samples are read with generators of their own."""

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

from torch.utils.data import Dataset, get_worker_info

from bitproof.data.randomness import CurrentSample, SampleGenerators, current_sample, generators_put_back
from bitproof.data.seeds import SampleKey, seeds_of_batch


class Indexable(Protocol):
    """A map-style data set."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return one sample."""
        ...


class KeyedDataset(Dataset[Any]):
    """Reads batches of (epoch, index) keys, each sample under generators set from (seed, epoch, index).

    Collating is done here as well, under generators set from the batch's first sample, so that a collate function that
    draws (a random mask) does not depend on which process calls it, and so that the surrounding generators are
    put back once a batch. In a worker process nothing else draws, and nothing is put back.

    Args:
        dataset: the map-style data set.
        seed: of the samples' randomness.
        keyed: False reads samples without setting any generator (and in one call of the data set's own
            ``__getitems__``, where it has that).
        collate: list of samples to batch.

    """

    def __init__(self, dataset: Indexable, seed: int, *, keyed: bool, collate: Callable[[list[Any]], Any]) -> None:
        self.dataset = dataset
        self._seed = seed
        self._keyed = keyed
        self._collate = collate

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: SampleKey) -> Any:
        return self.__getitems__([key])

    def __getitems__(self, keys: Sequence[SampleKey]) -> Any:
        """Return the collated batch of these samples."""
        if not self._keyed:
            return self._collate(read_many(self.dataset, [key[1] for key in keys]))
        with nullcontext() if get_worker_info() else generators_put_back():
            return self._read_keyed(keys)

    def _read_keyed(self, keys: Sequence[SampleKey]) -> Any:
        generators = SampleGenerators(seeds_of_batch(self._seed, keys))
        dataset, samples, current = self.dataset, [], CurrentSample(self._seed)
        before = current_sample.set(current)
        try:
            for k, key in enumerate(keys):
                current.move(key)
                generators.set(k)
                samples.append(dataset[key[1]])
        finally:
            current_sample.reset(before)
        generators.set(len(keys))
        return self._collate(samples)


class WorkerStart:
    """What a worker process does first: leave the main process's group, then run the user's `worker_init_fn`.

    A scheduler or a terminal signals the whole process group. Loader workers would die of it in the middle of a
    sample, and take the main process with them before it has saved; outside the group only the main process is told,
    and it ends its workers when it is done. (They also end by themselves once the main process is gone.)
    """

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init

    def __call__(self, worker_id: int) -> None:
        """Run at the start of worker `worker_id`."""
        os.setpgid(0, 0)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # schedulers that signal each process use it as a warning
        if self._init is not None:
            self._init(worker_id)


def as_is(batch: Any) -> Any:
    """Return a batch that `KeyedDataset` has collated already."""
    return batch


def read_many(dataset: Any, indices: list[int]) -> list[Any]:
    """Read samples, in one call where the data set offers it (as Hugging Face `datasets` does)."""
    if hasattr(dataset, "__getitems__"):
        return list(dataset.__getitems__(indices))
    return [dataset[index] for index in indices]
