"""A data loader whose position is all of its state."""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Final, Self

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from bitproof.data.content import fingerprint_of
from bitproof.data.errors import (
    BatchError,
    DataChangedError,
    NotCarriedError,
    PositionError,
    StaleIteratorError,
    TopologyError,
)
from bitproof.data.keyed import Indexable, KeyedDataset, WorkerStart, as_is
from bitproof.data.keys import derive_int
from bitproof.data.mixture import Mixture
from bitproof.data.pass_keys import PassKeys, Taken
from bitproof.data.pickling import explain_pickling
from bitproof.data.plan import Plan
from bitproof.data.progress import OrderProgress, Positions, Progress
from bitproof.data.sampler_progress import SamplerProgress, ranks_of
from bitproof.data.topology import find_topology, is_launched
from bitproof.data.torch_loader import OrderChangedWarning, order_change, settings_of

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

    With a `batch_sampler` of your own, its lists of indices are the batches: what it draws is set from (seed, epoch), and
    a resume iterates it again up to the batch that comes next, without reading samples. See `SamplerProgress`.

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
        batch_sampler: yields lists of indices, in place of batch_size, shuffle, drop_last and cross_epochs. They are global
            batches, which ranks share; or, where it or its ``sampler`` has a ``rank`` and ``num_replicas``, those of its rank.

    Raises:
        NotCarriedError: the data set is iterable-style.
        DataLengthError: it is empty.
        BatchError: batch_size does not fit the data or the ranks, or is given beside a batch_sampler; or that cannot be
            iterated.
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
        batch_sampler: Iterable[Any] | None = None,
    ) -> None:
        if rank is None and world_size is None and not is_launched():
            rank, world_size = ranks_of(batch_sampler) or (None, None)
        self.rank, self.world_size = rank, world_size = find_topology(rank, world_size)
        self.dataset = dataset = _map_style(dataset)
        self.sample_randomness = sample_randomness
        self.collate_fn = collate_fn or default_collate
        self.worker_init_fn = worker_init_fn
        self.batch_sampler = batch_sampler
        self._length = len(dataset)
        self._progress: Progress
        if batch_sampler is None:
            plan = Plan(
                n=dataset.n if isinstance(dataset, Mixture) else len(dataset),
                batch_size=batch_size,
                rank=rank,
                world_size=world_size,
                drop_last=drop_last,
                cross_epochs=cross_epochs,
            )
            self._progress = OrderProgress(dataset, plan, seed=int(seed), shuffle=shuffle)
        else:
            if batch_size != 1 or shuffle or drop_last or cross_epochs:
                raise BatchError(
                    f"Loader: batch_sampler={type(batch_sampler).__name__} decides what a batch holds, found it beside "
                    f"batch_size={batch_size}, shuffle={shuffle}, drop_last={drop_last}, cross_epochs={cross_epochs}. "
                    "Leave these out, or leave out the batch sampler."
                )
            self._progress = SamplerProgress(
                batch_sampler, n=self._length, seed=int(seed), rank=rank, world_size=world_size
            )
        options = (num_workers, pin_memory, timeout, multiprocessing_context, prefetch_factor, persistent_workers)
        self.worker_options: dict[str, Any] = dict(zip(_WORKER_OPTIONS, options, strict=True))
        self.last_samples: tuple[tuple[int, int], ...] = ()
        """(epoch, index) of each sample of the batch that was yielded last, this rank's share, in order."""
        self._fingerprint = fingerprint
        self._current = object()  # stands for the pass in progress
        self._keys = PassKeys()
        self._dataloader: DataLoader[Any] | None = None

    @classmethod
    def from_torch(cls, loader: DataLoader[Any], *, seed: int = 0) -> Self:
        """Return a loader with the data set, batches and workers of a plain DataLoader.

        Sampler: sequential, random (without replacement) or distributed. A shuffled one gets another order, once, of
        which an `OrderChangedWarning` tells. A `DistributedSampler` gives rank and world size, and its batch size is
        multiplied by the world size. Any other sampler or batch sampler is kept as the `batch_sampler`; what it draws changes
        once, too.

        Args:
            loader: any number of workers.
            seed: of order and per-sample randomness.

        Raises:
            NotCarriedError: the data set is iterable-style, or batches are not made of indices.

        """
        settings = settings_of(loader)
        if change := order_change(settings, loader, seed):
            warnings.warn(f"Loader.from_torch: {change}", OrderChangedWarning, stacklevel=2)
        return cls(loader.dataset, seed=seed, **settings)

    @property
    def seed(self) -> int:
        """Of order and per-sample randomness."""
        return self._progress.seed

    @property
    def shuffle(self) -> bool:
        """Whether each epoch is permuted."""
        return isinstance(self._progress, OrderProgress) and self._progress.shuffle

    @property
    def position(self) -> int:
        """Samples taken so far by all ranks together, over the endless stream of epochs; of a batch sampler, in this epoch."""
        return self._progress.position

    @property
    def epoch(self) -> int:
        """The epoch of the pass in progress, or of the next one where a pass has ended."""
        return self._progress.epoch

    @property
    def plan(self) -> Plan:
        """Batches and shares of the order.

        Raises:
            NotCarriedError: batches are those of a batch sampler.

        """
        return self._by_order().plan

    @property
    def batch_size(self) -> int | None:
        """Samples in a global batch; None with a batch sampler, which decides."""
        return self._progress.plan.batch_size if isinstance(self._progress, OrderProgress) else None

    @property
    def remaining(self) -> int:
        """Batches left in this pass."""
        return self._progress.remaining()

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
        """The order of samples.

        Raises:
            NotCarriedError: it is that of a batch sampler.

        """
        return self._by_order().order

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
        return len(self._progress)

    def __iter__(self) -> Iterator[Any]:
        """Start a pass: it takes up the loader's position when its first batch is asked for, not now."""
        current = self._current = object()
        batches, taken = self._begin()
        for batch in batches:
            mark, samples = taken.popleft()
            self._progress.take(mark)
            self.last_samples = tuple((epoch, index) for epoch, index, *_ in samples)
            yield batch
            if self._current is not current:
                raise StaleIteratorError(
                    f"this iterator was started before its loader was moved to position {self.position} (by "
                    "load_state_dict, set_epoch or another iterator), and would go on from where it was. Make a new "
                    "one with iter(loader)."
                )
        self._progress.finish()

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; nothing changes where that epoch is in progress already.

        Raises:
            PositionError: epoch is negative.

        """
        if epoch < 0:
            raise PositionError(f"Loader.set_epoch: epoch must be 0 or more, found {epoch}.")
        if epoch != self.epoch:
            self._progress.go(epoch)
            self._moved()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and what must match when it is loaded.

        Plain values, below 300 bytes as JSON; with a batch sampler that has a ``state_dict``, that as well.
        """
        return self._progress.state_dict(self.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any], *, accept_changed_data: bool = False) -> None:
        """Go to the position of a state, in constant time; with a batch sampler, its indices are drawn again up to there.

        Seed and shuffle come from the state: the order of a run does not change because a script draws its seed
        anew. Batch size, workers, rank and world size are this loader's own.

        Args:
            state: from `state_dict`, of a loader with any batch size, worker count and world size.
            accept_changed_data: go on with data of another length or fingerprint, at the same offset of the same
                epoch (or at the epoch's end, where it has become shorter).

        Raises:
            LoaderStateError: the state is no loader state, damaged, of another version of the order, or of another batch
                sampler.
            DataChangedError: it belongs to other data.

        """
        seed = self.seed
        self._progress.load_state_dict(state, lambda: self.fingerprint, accept=accept_changed_data)
        if seed != self.seed:
            self._dataloader = None  # its workers hold the other seed
        self._moved()

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
        if self.batch_sampler is None:
            plan = self.plan
            options |= {"batch_size": plan.batch_size, "shuffle": self.shuffle}
            options |= {"drop_last": plan.drop_last, "cross_epochs": plan.cross_epochs}
        elif (own := ranks_of(self.batch_sampler)) not in {None, (rank, world_size)}:
            raise TopologyError(
                f"the batch sampler is made for (rank, num_replicas) {own}, and gives no batches of rank {rank} of "
                f"{world_size}. Checking several topologies needs a batch sampler that gives global batches, without rank and "
                "num_replicas."
            )
        else:
            options["batch_sampler"] = copy.deepcopy(self.batch_sampler)
        return Loader(
            self.dataset,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            sample_randomness=self.sample_randomness,
            collate_fn=collate_fn or self.collate_fn,
            worker_init_fn=self.worker_init_fn,
            fingerprint=self._fingerprint,
            **options,
        )

    def _moved(self) -> None:
        self._current = object()
        self.last_samples = ()

    def _by_order(self) -> OrderProgress:
        if not isinstance(self._progress, OrderProgress):
            raise NotCarriedError(
                f"this Loader reads the batches of {type(self.batch_sampler).__name__}: it has no order that can be asked for "
                "a position. Iterate the batch sampler, or make the Loader with batch_size= and shuffle=."
            )
        return self._progress

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
        if len(self.dataset) != self._length:
            raise DataChangedError(
                f"the data set had {self._length} samples when the loader was made and has {len(self.dataset)} now: the "
                "order of an epoch is that of its length. Make a new Loader, and load the state with "
                "accept_changed_data=True to go on at the same offset."
            )
        taken = self._keys.start(self._progress.steps(), self._progress.remaining)
        dataloader = self.dataloader
        if dataloader.generator is not None:
            dataloader.generator.manual_seed(derive_int("workers", self.seed, self.epoch))
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
