"""A data loader whose position is all of its state."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any, Final, Self

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from bitproof.data.content import fingerprint_of
from bitproof.data.errors import (
    DataChangedError,
    NotCarriedError,
    PositionError,
    StaleIteratorError,
)
from bitproof.data.keyed import Indexable, KeyedDataset, SampleKey, WorkerStart, as_is
from bitproof.data.keys import derive_int
from bitproof.data.mixture import Mixture
from bitproof.data.order import ORDER_VERSION, Order
from bitproof.data.pass_keys import PassKeys, Positions, Taken
from bitproof.data.pickling import explain_pickling
from bitproof.data.plan import Plan
from bitproof.data.state import STATE_FORMAT, LoaderState
from bitproof.data.topology import find_topology
from bitproof.data.torch_loader import OrderChangedWarning, settings_of

_WORKER_OPTIONS: Final = (
    "num_workers", "pin_memory", "timeout", "multiprocessing_context", "prefetch_factor", "persistent_workers",
)  # fmt: skip


class Loader:
    """Batches of a map-style data set, in an order and with per-sample randomness that survive any resume.

    Underneath is a plain `torch.utils.data.DataLoader`; its batch sampler yields (epoch, index) pairs. What a batch
    holds is a pure function of (data set, seed, position): the same under any number of workers, any world size (for
    the same global batch), after any resume, and per sample also under any batch size.

    A ``for`` loop over the loader is one pass: from the position to the end of the epoch. The next loop is the next
    epoch. The position is what the loop has taken, whatever workers have prefetched.

    >>> loader = Loader(list(range(6)), batch_size=4, shuffle=True, seed=0)
    >>> [batch.tolist() for batch in loader]
    [[4, 0, 3, 5], [2, 1]]
    >>> loader.state_dict()["position"], loader.epoch
    (6, 1)

    Args:
        dataset: a map-style data set (``len(dataset)``, ``dataset[index]``), or a `Mixture`.
        batch_size: samples in a global batch: of all ranks together. Divisible by world_size.
        shuffle: permute each epoch.
        seed: of order and per-sample randomness, any integer.
        rank: this process; by default that of torch.distributed, where it is initialised.
        world_size: number of processes that share each batch; by default that of torch.distributed.
        drop_last: leave out an epoch's last batch where it is short.
        cross_epochs: let batches run across the end of an epoch, so that all are whole.
        sample_randomness: set python's, NumPy's and torch's generators before each ``dataset[index]`` and before
            collating. False leaves them alone: augmentation then depends on workers and does not survive a resume.
        collate_fn: list of samples to batch, by default torch's.
        num_workers: worker processes, 0 to read in this one. Also pin_memory, timeout, worker_init_fn,
            multiprocessing_context, prefetch_factor and persistent_workers are those of `DataLoader`.
        pin_memory: see num_workers.
        timeout: see num_workers; seconds.
        worker_init_fn: see num_workers.
        multiprocessing_context: see num_workers.
        prefetch_factor: see num_workers; batches a worker.
        persistent_workers: see num_workers.
        fingerprint: a fingerprint of the data that you know better than by reading a few samples.

    Raises:
        NotCarriedError: the data set is iterable-style.
        DataLengthError: it is empty.
        BatchError: batch_size does not fit the data or the ranks.
        TopologyError: rank and world_size do not fit each other, or the launcher's.

    """

    def __init__(
        self,
        dataset: Indexable | Dataset[Any],
        batch_size: int = 1,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        cross_epochs: bool = False,
        sample_randomness: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        fingerprint: str | None = None,
    ) -> None:
        rank, world_size = find_topology(rank, world_size)
        self.dataset = dataset = _map_style(dataset)
        self.seed = int(seed)
        self.shuffle = shuffle
        self.sample_randomness = sample_randomness
        self.collate_fn = collate_fn or default_collate
        self.worker_init_fn = worker_init_fn
        self.plan = Plan(
            n=dataset.n if isinstance(dataset, Mixture) else len(dataset),
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            cross_epochs=cross_epochs,
        )
        options = (num_workers, pin_memory, timeout, multiprocessing_context, prefetch_factor, persistent_workers)
        self.worker_options: dict[str, Any] = dict(zip(_WORKER_OPTIONS, options, strict=True))
        self.last_samples: tuple[SampleKey, ...] = ()
        """(epoch, index) of each sample of the batch that was yielded last, this rank's share, in order."""
        self._fingerprint = fingerprint
        self._position = 0
        self._epoch = 0
        self._current = object()  # stands for the pass in progress
        self._keys = PassKeys()
        self._dataloader: DataLoader[Any] | None = None

    @classmethod
    def from_torch(cls, loader: DataLoader[Any], *, seed: int = 0) -> Self:
        """Return a loader with the data set, batches and workers of a plain DataLoader.

        Sampler: sequential, random (without replacement) or distributed. A shuffled one gets another order, once, of
        which an `OrderChangedWarning` tells. A `DistributedSampler` gives rank and world size, and its batch size is
        multiplied by the world size.

        Args:
            loader: any number of workers.
            seed: of order and per-sample randomness.

        Raises:
            NotCarriedError: the sampler, batch sampler or data set is of a kind that has no known order.

        """
        settings = settings_of(loader)
        if settings["shuffle"]:
            warnings.warn(
                f"Loader.from_torch: samples come in another order than {type(loader.sampler).__name__}'s, from seed "
                f"{seed}. It changes once, now, and survives every resume from here on.",
                OrderChangedWarning,
                stacklevel=2,
            )
        return cls(loader.dataset, seed=seed, **settings)

    @property
    def position(self) -> int:
        """Samples taken so far by all ranks together, over the endless stream of epochs."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch of the pass in progress, or of the next one where a pass has ended."""
        return self._epoch

    @property
    def batch_size(self) -> int:
        """Samples in a global batch."""
        return self.plan.batch_size

    @property
    def remaining(self) -> int:
        """Batches left in this pass."""
        return self.plan.remaining(self._position, self._epoch)

    @property
    def limits(self) -> tuple[str, ...]:
        """What a resume does not restore, one sentence each; empty where it is exact."""
        if self.sample_randomness:
            return ()
        limit = (
            "sample_randomness=False: what is drawn while samples are read (augmentation) depends on workers, and differs "
            "after a resume."
        )
        return (limit,)

    @property
    def order(self) -> Positions:
        """The order of samples."""
        if isinstance(self.dataset, Mixture):
            return self.dataset
        return Order(self.plan.n, self.seed, shuffle=self.shuffle)

    @property
    def dataloader(self) -> DataLoader[Any]:
        """The plain DataLoader underneath."""
        if self._dataloader is None:
            self._dataloader = self._make_dataloader()
        return self._dataloader

    @property
    def fingerprint(self) -> str:
        """The data's fingerprint; read when it is first asked for."""
        if self._fingerprint is None:
            self._fingerprint = self._read_fingerprint()
        return self._fingerprint

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch (with cross_epochs, at most)."""
        return self.plan.remaining(0, 0)

    def __iter__(self) -> Iterator[Any]:
        """Start a pass: it takes up the loader's position when its first batch is asked for, not now."""
        current = self._current = object()
        batches, taken = self._begin()
        for batch in batches:
            self._position, self.last_samples = taken.popleft()
            yield batch
            if self._current is not current:
                raise StaleIteratorError(
                    f"this iterator was started before its loader was moved to position {self._position} (by "
                    "load_state_dict, set_epoch or another iterator), and would go on from where it was. Make a new "
                    "one with iter(loader)."
                )
        self._epoch += 1
        self._position = max(self._position, self._epoch * self.plan.n)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; nothing changes where that epoch is in progress already.

        Raises:
            PositionError: epoch is negative.

        """
        if epoch < 0:
            raise PositionError(f"Loader.set_epoch: epoch must be 0 or more, found {epoch}.")
        if epoch != self._epoch:
            self._move(epoch * self.plan.n, epoch)

    def state_dict(self) -> dict[str, int | bool | str]:
        """Return the position, and what must match when it is loaded: plain values, below 300 bytes as JSON."""
        return LoaderState(
            format=STATE_FORMAT,
            order_version=ORDER_VERSION,
            seed=self.seed,
            shuffle=self.shuffle,
            position=self._position,
            epoch=self._epoch,
            length=self.plan.n,
            fingerprint=self.fingerprint,
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, accept_changed_data: bool = False) -> None:
        """Go to the position of a state, in constant time.

        Seed and shuffle come from the state: the order of a run does not change because a script draws its seed
        anew. Batch size, workers, rank and world size are this loader's own.

        Args:
            state: from `state_dict`, of a loader with any batch size, worker count and world size.
            accept_changed_data: go on with data of another length or fingerprint, at the same offset of the same
                epoch (or at the epoch's end, where it has become shorter).

        Raises:
            LoaderStateError: the state is no loader state, damaged, or of another version of the order.
            DataChangedError: it belongs to other data.

        """
        loaded = LoaderState.from_dict(state)
        if accept_changed_data:
            offset = min(loaded.position - loaded.epoch * loaded.length, self.plan.n)
            loaded = replace(loaded, position=loaded.epoch * self.plan.n + offset)
        else:
            loaded.check_data(self.plan.n, self.fingerprint)
        if loaded.seed != self.seed:
            self._dataloader = None  # its workers hold the other seed
        self.seed, self.shuffle = loaded.seed, loaded.shuffle
        self._move(loaded.position, loaded.epoch)

    def with_topology(
        self,
        *,
        rank: int,
        world_size: int,
        num_workers: int,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> "Loader":
        """Return a loader over the same data, order and batches, at position 0, for other ranks and workers."""
        options = {**self.worker_options, "num_workers": num_workers}
        if num_workers == 0:
            options |= {
                "multiprocessing_context": None,
                "prefetch_factor": None,
                "persistent_workers": False,
                "timeout": 0,
            }
        return Loader(
            self.dataset,
            self.batch_size,
            shuffle=self.shuffle,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            drop_last=self.plan.drop_last,
            cross_epochs=self.plan.cross_epochs,
            sample_randomness=self.sample_randomness,
            collate_fn=collate_fn or self.collate_fn,
            worker_init_fn=self.worker_init_fn,
            fingerprint=self._fingerprint,
            **options,
        )

    def _move(self, position: int, epoch: int) -> None:
        self._position, self._epoch = position, epoch
        self._current = object()
        self.last_samples = ()

    def _make_dataloader(self) -> DataLoader[Any]:
        return DataLoader(
            KeyedDataset(self.dataset, self.seed, keyed=self.sample_randomness, collate=self.collate_fn),
            batch_sampler=self._keys,
            collate_fn=as_is,
            worker_init_fn=WorkerStart(self.worker_init_fn) if self.worker_options["num_workers"] else None,
            # Its own, since a DataLoader draws a seed for its workers each time it is iterated: from the global
            # generator, a resume in the middle of an epoch would draw once more than a run without one.
            generator=torch.Generator(),
            **self.worker_options,
        )

    def _begin(self) -> tuple[Iterator[Any], Taken]:
        """Start reading at the position; return the batches, and the queue of what each one takes."""
        if not isinstance(self.dataset, Mixture) and len(self.dataset) != self.plan.n:
            raise DataChangedError(
                f"the data set had {self.plan.n} samples when the loader was made and has {len(self.dataset)} now: the "
                "order of an epoch is that of its length. Make a new Loader, and load the state with "
                "accept_changed_data=True to go on at the same offset."
            )
        self.plan.check_shares(self._position, self._epoch)
        taken = self._keys.start(self.plan, self.order, self._position, self._epoch)
        dataloader = self.dataloader
        if dataloader.generator is not None:
            dataloader.generator.manual_seed(derive_int("workers", self.seed, self._epoch))
        try:
            return iter(dataloader), taken
        except Exception as error:
            explain_pickling(error, self, self.worker_options)
            raise

    def _read_fingerprint(self) -> str:
        workers = self.worker_options["num_workers"]
        if not workers:
            return fingerprint_of(self.dataset)
        # In a worker, since a data set that is read by workers may open files at its first sample, and must not do so
        # in the process that later forks.
        reader = DataLoader(
            _Fingerprint(self.dataset),
            batch_size=None,
            num_workers=1,
            worker_init_fn=WorkerStart(self.worker_init_fn),
            generator=torch.Generator(),
            multiprocessing_context=self.worker_options["multiprocessing_context"],
        )
        try:
            with torch.no_grad():  # a recorder takes this for no training
                return str(next(iter(reader)))
        except Exception as error:
            explain_pickling(error, self, self.worker_options)
            raise


class _Fingerprint(Dataset[str]):
    """One item: the fingerprint of a data set, read in a worker."""

    def __init__(self, dataset: Indexable) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        return fingerprint_of(self.dataset)


def _map_style(dataset: Indexable | Dataset[Any]) -> Indexable:
    if isinstance(dataset, IterableDataset) or not (isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")):
        raise NotCarriedError(
            f"Loader: {type(dataset).__name__} is no map-style data set (len(dataset) and dataset[index] are needed), so "
            "no position can be found in it without reading up to there. Use bitproof.data.carry(DataLoader(dataset)) "
            "for a stream that has a state_dict, or bitproof.data.ShuffleBuffer to shuffle one exactly."
        )
    return dataset
