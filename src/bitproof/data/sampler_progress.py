"""Where a loader is in the batches of the user's own batch sampler."""

import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Any, Final

import numpy as np
import xxhash

from bitproof.data.errors import BatchError, LoaderStateError, NotCarriedError, TopologyError
from bitproof.data.order import ORDER_VERSION
from bitproof.data.progress import Step
from bitproof.data.randomness import OwnGenerators
from bitproof.data.sampler_state import SAMPLER_STATE_FORMAT, SamplerState
from bitproof.data.seeds import SampleKey, seeds_of
from bitproof.data.state import check_same_data

_COMPARED: Final = 8
"""Batches of the first pass that are drawn twice, to see that they are the same."""

_NOTHING: Final = xxhash.xxh3_64().hexdigest()
_UNKNOWN: Final = "unknown"
"""In place of a digest, where changed data was accepted."""

_REMEDY: Final = (
    "Draw from python's, NumPy's or torch's global generators, which the Loader sets for each epoch (generator=None in "
    "torch's samplers), or from a generator made anew in each __iter__ from a seed and the epoch that set_epoch was "
    "given; or give the sampler state_dict and load_state_dict."
)


class SamplerProgress:
    """A position in the batches of a batch sampler: batches of an epoch that were taken.

    An epoch's batches are those of one iteration over the sampler, after ``set_epoch(epoch)`` where it has that, while
    python's, NumPy's and torch's generators are set from ("batches", seed, epoch). The surrounding generators are put
    back whenever the sampler has given a batch. So a resume iterates it once more, reads nothing of the batches that
    were taken, and checks by a digest that they are the same. A sampler (or its iterator) with ``state_dict`` and
    ``load_state_dict`` is put into the state that it had when the epoch was begun, before each iteration.

    A sampler with a ``rank`` and ``num_replicas`` of its own (or whose ``sampler`` has them) gives the batches of that rank.
    Any other gives global batches, which ranks share: rank *r* of *R* takes samples *r*, *r + R*, … of each.

    Args:
        batch_sampler: yields lists of indices.
        n: samples in the data set.
        seed: of what the sampler draws, and of the samples' randomness.
        rank: this process.
        world_size: number of processes.

    Raises:
        BatchError: the sampler cannot be iterated.
        TopologyError: it is of another rank or world size.

    """

    def __init__(self, batch_sampler: Iterable[Any], *, n: int, seed: int, rank: int, world_size: int) -> None:
        if not any(hasattr(type(batch_sampler), name) for name in ("__iter__", "__getitem__")):
            raise BatchError(
                f"Loader: batch_sampler={batch_sampler!r:.80} cannot be iterated: expected what yields lists of indices, one "
                "for each batch, such as torch.utils.data.BatchSampler. For batches of one size give batch_size."
            )
        self.sampler = batch_sampler
        self.own_ranks = ranks_of(batch_sampler)
        self.seed = seed
        self.position = self.epoch = self.batch = 0
        if self.own_ranks not in {None, (rank, world_size)}:
            raise TopologyError(
                f"{_name(batch_sampler)} is of (rank, num_replicas) {self.own_ranks}, and this is rank {rank} of "
                f"{world_size}: ranks would read samples twice or not at all. Make both for the same rank and world size."
            )
        self._n = n
        self._ranks = (rank, world_size)
        self._digest = _NOTHING  # of the batches that were taken in this epoch
        self._start: Any = None  # the sampler's own state at the start of an epoch, where it has one
        self._begun: int | None = None  # that epoch
        self._compared = False

    def steps(self) -> Callable[[], Iterator[Step]]:
        """Return what gives the batches from here to the end of the epoch."""
        return partial(self._steps, self.epoch, self.batch, self.position, self._digest)

    def take(self, mark: tuple[int, int, str]) -> None:
        """Note that the loop has taken a batch."""
        self.batch, self.position, self._digest = mark

    def finish(self) -> None:
        """Go to the start of the next epoch."""
        if not self.batch:
            raise BatchError(
                f"{_name(self.sampler)} gave no batch in epoch {self.epoch}: expected 1 or more. Check its length and its "
                "filter."
            )
        self.go(self.epoch + 1)

    def go(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        self.epoch, self.batch, self.position = epoch, 0, 0
        self._digest = _NOTHING

    def remaining(self) -> int:
        """Return the number of batches left in this pass."""
        return max(0, len(self) - self.batch)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]  # raises what len() raises where it has no length

    def state_dict(self, fingerprint: str) -> dict[str, Any]:
        """Return the position, and what must match when it is loaded: plain values, and the sampler's own state."""
        if self._begun != self.epoch:
            self._open(self.epoch)  # so that its state is known
        return SamplerState(
            format=SAMPLER_STATE_FORMAT,
            order_version=ORDER_VERSION,
            sampler=_name(self.sampler),
            seed=self.seed,
            epoch=self.epoch,
            batch=self.batch,
            sample=self.position,
            digest=self._digest,
            num_replicas=self._replicas,
            length=self._n,
            fingerprint=fingerprint,
            start=copy.deepcopy(self._start),
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any], fingerprint: Callable[[], str], *, accept: bool) -> None:
        """Take up a position.

        Raises:
            LoaderStateError: the state is no state of a batch sampler, of another sampler or world size, or damaged.
            DataChangedError: it belongs to other data, and `accept` is False.

        """
        loaded = SamplerState.from_dict(state)
        loaded.check_sampler(_name(self.sampler), self._replicas)
        if not accept:
            check_same_data((loaded.length, loaded.fingerprint), (self._n, fingerprint()))
        self.seed = loaded.seed
        self.go(loaded.epoch)
        self.batch, self.position = loaded.batch, loaded.sample
        self._start, self._begun = copy.deepcopy(loaded.start), loaded.epoch
        self._digest = _UNKNOWN if accept else loaded.digest

    def _steps(self, epoch: int, batch: int, position: int, expected: str) -> Iterator[Step]:
        rank, world_size = (0, 1) if self.own_ranks else self._ranks
        digest, number = xxhash.xxh3_64(), 0
        times = np.zeros(self._n, dtype=np.uint32).data
        for number, indices in enumerate(self._batches(epoch), start=1):
            if number == batch + 1:
                self._check_taken(batch, expected, number - 1, digest.hexdigest())
            keys = [self._key(epoch, index, times) for index in indices]
            digest.update(np.array([len(indices), *indices], dtype="<i8").tobytes())
            if number > batch:
                if len(keys) < world_size:
                    raise BatchError(
                        f"{_name(self.sampler)}: batch {number - 1} of epoch {epoch} has {len(keys)} "
                        f"sample{'s' * (len(keys) != 1)} for {world_size} ranks: ranks without one would leave the others "
                        "waiting in their collectives. Let the batch sampler fill or leave out such a batch."
                    )
                position += len(keys)
                yield (number, position, digest.hexdigest()), keys[rank::world_size]
        if number <= batch:
            self._check_taken(batch, expected, number, digest.hexdigest())

    def _key(self, epoch: int, index: int, times: memoryview) -> SampleKey:
        if not 0 <= index < self._n:
            raise BatchError(
                f"{_name(self.sampler)} gave index {index} for {self._n} samples: expected 0 to {self._n - 1}. Make the "
                "batch sampler for the data set that the Loader reads."
            )
        before = times[index]
        times[index] += 1
        return (epoch, index, before) if before else (epoch, index)

    def _check_taken(self, batch: int, expected: str, found_batch: int, found: str) -> None:
        """Check that the batches passed over are those that were taken."""
        if expected == _UNKNOWN or (batch, expected) == (found_batch, found):
            return
        what = f"only {found_batch}" if found_batch < batch else f"{found_batch} others (digest {found})"
        raise LoaderStateError(
            f"{_name(self.sampler)} was to give the {batch} batches of epoch {self.epoch} that were taken before (digest "
            f"{expected}), and gave {what}: the run would go on with samples seen twice or never. Its settings or its data "
            f"changed, or its batches do not follow from the epoch. {_REMEDY}"
        )

    def _batches(self, epoch: int) -> Iterator[list[int]]:
        if self._compared:
            return self._iterate(epoch)
        first = list(islice(self._iterate(epoch), _COMPARED))
        batches = self._iterate(epoch)
        again = list(islice(batches, _COMPARED))
        if first != again:
            number = next(k for k, pair in enumerate(zip_longest(first, again)) if pair[0] != pair[1])
            raise NotCarriedError(
                f"{_name(self.sampler)} does not give the same batches twice: iterated two times for epoch {epoch}, batch "
                f"{number} was {_shown(first, number)} and then {_shown(again, number)}, so no resume could find its place. "
                f"It holds a generator or a count of its own. {_REMEDY}"
            )
        self._compared = True
        return chain(again, batches)

    def _iterate(self, epoch: int) -> Iterator[list[int]]:
        batches, generators = self._open(epoch)
        while True:
            with generators.running():
                indices = next(batches, None)
            if indices is None:
                return
            yield self._plain(indices)

    def _open(self, epoch: int) -> tuple[Iterator[Any], OwnGenerators]:
        """Start an iteration for an epoch, from the state that sampler or iterator had when the epoch was first begun."""
        known, start = self._begun == epoch, None
        if _is_stateful(self.sampler):
            start = _put(self.sampler, self._start if known else None)
        for part in (self.sampler, getattr(self.sampler, "sampler", None)):
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(epoch)
        generators = OwnGenerators(seeds_of("batches", self.seed, [(epoch, 0)]))
        with generators.running():
            batches = iter(self.sampler)
            if not _is_stateful(self.sampler) and _is_stateful(batches):  # as torchdata's are
                start = _put(batches, self._start if known else None)
        if not known:
            self._start, self._begun = start, epoch
        elif (start is None) != (self._start is None):
            had, has = ("none", "one") if self._start is None else ("one", "none")
            raise LoaderStateError(
                f"loader state: the batch sampler had {had} of its own state when it was saved, and {_name(self.sampler)} has "
                f"{has} now (state_dict and load_state_dict). Resume with the batch sampler of the run."
            )
        return batches, generators

    def _plain(self, indices: Any) -> list[int]:
        try:
            found = [operator.index(index) for index in indices]
        except TypeError as error:
            raise BatchError(
                f"{_name(self.sampler)} gave {indices!r:.80}: expected a list of whole numbers, the indices of a batch's "
                f"samples ({error}). A sampler of single indices belongs into torch.utils.data.BatchSampler."
            ) from error
        if not found:
            raise BatchError(f"{_name(self.sampler)} gave an empty batch: expected 1 index or more.")
        return found

    @property
    def _replicas(self) -> int:
        return self.own_ranks[1] if self.own_ranks else 0


def ranks_of(batch_sampler: Any) -> tuple[int, int] | None:
    """Return the (rank, num_replicas) that a batch sampler, or the sampler in it, is made for; None where it has none.

    The names are torch's, mmengine's and accelerate's.
    """
    for part in (batch_sampler, getattr(batch_sampler, "sampler", None)):
        for names in (("rank", "num_replicas"), ("rank", "world_size"), ("process_index", "num_processes")):
            rank, replicas = (getattr(part, name, None) for name in names)
            if isinstance(rank, int) and isinstance(replicas, int):
                return rank, replicas
    return None


def _put(stateful: Any, start: Any) -> Any:
    """Put a sampler or its iterator into a state, where there is one; return a copy of its state."""
    if start is not None:
        stateful.load_state_dict(copy.deepcopy(start))
    return copy.deepcopy(stateful.state_dict())


def _is_stateful(batch_sampler: Any) -> bool:
    return all(callable(getattr(batch_sampler, name, None)) for name in ("state_dict", "load_state_dict"))


def _name(batch_sampler: Any) -> str:
    """Return the type's name, with that of the sampler in it."""
    within = getattr(batch_sampler, "sampler", None)
    own = type(batch_sampler).__name__
    return own if within is None else f"{own}({type(within).__name__})"


def _shown(batches: list[list[int]], number: int) -> str:
    return f"{batches[number]!r:.60}" if number < len(batches) else "missing"
