"""Resuming loaders that are not ours: what is exact, what is not, and what is refused."""

import copy
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from types import NoneType
from typing import Any, Final, Protocol, cast

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, Sampler

from bitproof.data.errors import LoaderStateError, NotCarriedError, StaleIteratorError
from bitproof.data.loader import Loader
from bitproof.data.resume_loss import measure_resume
from bitproof.data.torch_loader import known_sampler

CARRY_FORMAT: Final = 2


class InexactResumeWarning(UserWarning):
    """A loader is carried, and something of it will not come back as it was."""


class Carried(Protocol):
    """A loader with a state that can be saved and loaded."""

    @property
    def limits(self) -> tuple[str, ...]:
        """What a resume does not restore, one sentence each; empty where it is exact."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Read a pass, or the rest of one."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state as of the batch yielded last."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take up a state: the next iteration goes on after that batch."""
        ...


def carry(loader: Any, *, probe: int = 1000) -> Carried:
    """Return what carries a loader's position over a resume.

    ======================================================  ==========================================================
    loader                                                  carried by
    ======================================================  ==========================================================
    `bitproof.data.Loader`                                  itself
    DataLoader, sequential, random or distributed sampler,  replaying the sampler from its recorded generator state;
    no workers                                              skipped samples are not read
    torchdata's StatefulDataLoader                          its own state
    DataLoader over a stream with state_dict, no workers    the stream's own state, measured first
    anything else                                           refused, with the reason and the remedy
    ======================================================  ==========================================================

    What will not come back exactly is in ``limits``, and an `InexactResumeWarning` says so.

    Args:
        loader: any of the above.
        probe: samples of a stream to read (of copies of it) to measure its resume; 0 to not measure.

    Raises:
        NotCarriedError: the loader is of another kind.

    """
    carried = _find(loader, probe)
    for limit in carried.limits:
        warnings.warn(f"{type(loader).__name__}: {limit}", InexactResumeWarning, stacklevel=2)
    return carried


def _find(loader: Any, probe: int) -> Carried:
    if isinstance(loader, Loader):
        return loader
    if isinstance(loader, _stateful_class()):
        return CarriedStateful(loader)
    if not isinstance(loader, DataLoader):
        raise NotCarriedError(
            f"{type(loader).__name__} is no DataLoader: nothing is known of its position. Use bitproof.data.Loader, or "
            "give it state_dict and load_state_dict and register it as a part of the run's state."
        )
    if loader.num_workers:
        raise NotCarriedError(
            f"a DataLoader with num_workers={loader.num_workers} cannot be carried: workers read ahead, and what they "
            "drew is in no state. "
            + (
                "Use num_workers=0, or torchdata's StatefulDataLoader with the same number of workers."
                if isinstance(loader.dataset, IterableDataset)
                else "Use bitproof.data.Loader.from_torch(loader), which changes the order of samples once."
            )
        )
    if isinstance(loader.dataset, IterableDataset) and hasattr(loader.dataset, "load_state_dict"):
        return CarriedStream(loader, probe)
    known_sampler(loader)
    return CarriedSampler(loader)


class _OnePosition:
    """An iterator is good until the next one is started or a state is loaded."""

    _kind: str
    _fields: Mapping[str, type | tuple[type, ...]]
    """Beside format and kind."""

    def __init__(self) -> None:
        self._current = object()

    def _guard(self, batches: Iterator[Any], current: object) -> Iterator[Any]:
        for batch in batches:
            self._taken()
            yield batch
            if self._current is not current:
                raise StaleIteratorError(
                    "this iterator was started before its loader was moved (by load_state_dict or another iterator), and "
                    "would go on from where it was. Make a new one with iter()."
                )

    def _taken(self) -> None:
        """Note that a batch goes to the loop."""

    def _checked(self, state: Any) -> Mapping[str, Any]:
        if not isinstance(state, Mapping):
            raise LoaderStateError(
                f"loader state: expected the mapping that state_dict() returned, found {type(state).__name__}."
            )
        for name, expected in (("format", CARRY_FORMAT), ("kind", self._kind)):
            if state.get(name) != expected:
                raise LoaderStateError(
                    f"loader state: {name} is {state.get(name)!r}, expected {expected!r}. It was saved from another kind "
                    "of loader, or by another version; resume with the loader that the run had."
                )
        for name, kind in self._fields.items():
            if name not in state or not isinstance(state[name], kind):
                found = f"found {state[name]!r:.80}" if name in state else "it is missing"
                raise LoaderStateError(
                    f"loader state: field {name!r} must be {_names(kind)}, {found}. The state is damaged or was changed by "
                    "hand; take another checkpoint."
                )
        return state


class CarriedSampler(_OnePosition):
    """A plain DataLoader without workers, carried by replaying its sampler.

    The state of the generator that the sampler draws from is recorded when a pass starts. A resume sets it, lets
    the sampler draw again, passes over the batches that were consumed, and puts the generator back.
    """

    limits: tuple[str, ...] = ()
    _kind = "sampler"
    _fields: Mapping[str, type | tuple[type, ...]] = {
        "sampler": str,
        "settings": dict,
        "length": int,
        "batches": int,
        "epoch": (int, NoneType),
        "generator": (torch.Tensor, NoneType),
    }

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__()
        self._sampler = known_sampler(loader)
        self._replay = _Replay(loader, self._sampler)
        # The user's settings over the same batches; drawing the seed for workers as the user's own loader does.
        self._dataloader = DataLoader(
            loader.dataset,
            batch_sampler=self._replay,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            generator=loader.generator,
        )
        self._batches = 0

    def __iter__(self) -> Iterator[Any]:
        """Read a pass, or the rest of one."""
        current = self._current = object()
        resumed = self._replay.skip is not None
        self._batches = self._replay.skip or 0
        with _put_back(self._dataloader.generator or torch.default_generator, only=resumed):
            batches = iter(self._dataloader)
        yield from self._guard(batches, current)
        self._batches, self._replay.drawn_from = 0, None

    def _taken(self) -> None:
        self._batches += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state at the start of the pass (uint8[5056]), and the batches consumed in it."""
        drawn_from = self._replay.drawn_from
        return {
            "format": CARRY_FORMAT,
            "kind": self._kind,
            "sampler": type(self._sampler).__name__,
            "settings": self._replay.settings,
            "length": self._replay.length,
            "batches": self._batches,
            "epoch": getattr(self._sampler, "epoch", None),
            "generator": None if drawn_from is None else drawn_from.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take up a state.

        Raises:
            LoaderStateError: it is of another kind of loader, sampler or length, of other settings, or damaged.

        """
        state = self._checked(state)
        own = {"sampler": type(self._sampler).__name__, "length": self._replay.length, **self._replay.settings}
        saved = {"sampler": state["sampler"], "length": state["length"], **state["settings"]}
        for name in sorted(own.keys() | saved.keys(), key=[*own, *saved].index):
            then, now = (values.get(name, "not set") for values in (saved, own))
            if then != now:
                raise LoaderStateError(
                    f"loader state: {name} was {then!r} when it was saved and is {now!r} now: batches would hold other "
                    "samples. Resume with the settings of the run, or use bitproof.data.Loader, whose batch size and world "
                    "size may change."
                )
        if isinstance(self._sampler, DistributedSampler):
            self._sampler.set_epoch(state["epoch"])
        self._current = object()
        self._batches = state["batches"]
        self._replay.drawn_from = state["generator"]
        self._replay.skip = state["batches"] if state["batches"] or state["generator"] is not None else None


class _Replay(Sampler[list[Any]]):
    """The user's batch sampler, from a recorded generator state where there is one."""

    def __init__(self, loader: DataLoader[Any], sampler: Sampler[Any]) -> None:
        batch_sampler: Any = loader.batch_sampler
        self._batch_sampler = batch_sampler
        self._generator = getattr(sampler, "generator", None) or torch.default_generator
        self._draws = isinstance(sampler, RandomSampler)
        self.settings = {"batch_size": batch_sampler.batch_size, "drop_last": batch_sampler.drop_last}
        if isinstance(sampler, DistributedSampler):  # what its order depends on; its own drop_last decides on its share
            self.settings |= {"num_replicas": sampler.num_replicas, "shuffle": sampler.shuffle, "seed": sampler.seed}
            self.settings |= {"sampler_drop_last": sampler.drop_last}
        self.length = len(loader.dataset)  # type: ignore[arg-type]
        self.skip: int | None = None
        self.drawn_from: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self._batch_sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        skip, self.skip = self.skip, None
        if skip is None:
            self.drawn_from = self._generator.get_state() if self._draws else None
            yield from self._batch_sampler
            return
        # The global generator has moved on since this pass began, and its state now is the run's own to restore. A
        # generator that only the sampler draws from is left where the sampler leaves it.
        with _put_back(self._generator, only=self._generator is torch.default_generator):
            if self.drawn_from is not None:
                self._generator.set_state(self.drawn_from)
            batches = iter(self._batch_sampler)
            first = list(islice(batches, skip + 1))[skip:]
        yield from first
        yield from batches


class CarriedStateful(_OnePosition):
    """torchdata's StatefulDataLoader, carried by its own state.

    Its `state_dict` is of the batch yielded last. Draws that it makes when a resumed iterator is made are put back, so
    that without workers a run whose generators are restored goes on with the same augmentation.
    """

    _kind = "stateful"
    _fields: Mapping[str, type | tuple[type, ...]] = {"num_workers": int, "loader": Mapping}

    def __init__(self, loader: Any) -> None:
        super().__init__()
        self._loader = loader
        self._resumed = False

    @property
    def limits(self) -> tuple[str, ...]:
        """What a resume does not restore."""
        if not self._loader.num_workers:
            return ()
        limit = (
            f"the generators of its {self._loader.num_workers} workers are in no state: after a resume samples come in the "
            "same order, and what is drawn while they are read (augmentation) differs. Use bitproof.data.Loader."
        )
        return (limit,)

    def __iter__(self) -> Iterator[Any]:
        """Read a pass, or the rest of one."""
        current = self._current = object()
        with _put_back(torch.default_generator, only=self._resumed):
            batches = iter(self._loader)
        self._resumed = False
        yield from self._guard(batches, current)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's own state, and its number of workers."""
        return {
            "format": CARRY_FORMAT,
            "kind": self._kind,
            "num_workers": self._loader.num_workers,
            "loader": copy.deepcopy(self._loader.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take up a state.

        Raises:
            LoaderStateError: it is of another kind of loader, or of another number of workers.

        """
        state = self._checked(state)
        if state["num_workers"] != self._loader.num_workers:
            raise LoaderStateError(
                f"StatefulDataLoader state: num_workers was {state['num_workers']} when it was saved and is "
                f"{self._loader.num_workers} now: its state is one a worker. Resume with {state['num_workers']} workers, "
                "or use bitproof.data.Loader, where the number may change."
            )
        self._loader.load_state_dict(copy.deepcopy(state["loader"]))
        self._current = object()
        self._resumed = True


class CarriedStream(_OnePosition):
    """A DataLoader without workers over a stream that has a state_dict, carried by that.

    Some streams save a position only, and lose what sits in their shuffle buffer; whether this one does is measured on
    copies of it. Some start every later pass at a loaded state; so each pass that is not resumed is started at the
    state that the stream had at first.
    """

    _kind = "stream"
    _fields: Mapping[str, type | tuple[type, ...]] = {"stream": object}

    def __init__(self, loader: DataLoader[Any], probe: int) -> None:
        super().__init__()
        self._loader = loader
        self._stream = cast("Any", loader.dataset)
        self._start = copy.deepcopy(self._stream.state_dict())
        self._resumed = self._started_late = False
        self._limits = _measured(self._stream, probe)

    @property
    def limits(self) -> tuple[str, ...]:
        """What a resume does not restore, as measured."""
        return self._limits

    def __iter__(self) -> Iterator[Any]:
        """Read a pass, or the rest of one."""
        current = self._current = object()
        if not self._resumed and self._started_late:
            self._stream.load_state_dict(copy.deepcopy(self._start))
        self._started_late, self._resumed, resumed = self._started_late or self._resumed, False, self._resumed
        with _put_back(self._loader.generator or torch.default_generator, only=resumed):
            batches = iter(self._loader)
        yield from self._guard(batches, current)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the stream's own state."""
        return {"format": CARRY_FORMAT, "kind": self._kind, "stream": copy.deepcopy(self._stream.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take up a state.

        Raises:
            LoaderStateError: it is of another kind of loader.

        """
        self._stream.load_state_dict(copy.deepcopy(self._checked(state)["stream"]))
        self._current = object()
        self._resumed = True


def _measured(stream: Any, probe: int) -> tuple[str, ...]:
    if not probe:
        return ("what its state restores was not measured (probe=0). See bitproof.data.measure_resume().",)
    try:
        loss = measure_resume(stream, limit=probe)
    except Exception as error:  # noqa: BLE001 - the user's stream may raise anything; it is reported, and not used
        return (f"what its state restores could not be measured on copies of it: {type(error).__name__}: {error}",)
    if loss.exact:
        return ()
    return (
        f"{loss}. Its state does not hold all of its content. bitproof.data.ShuffleBuffer shuffles a stream exactly.",
    )


def _names(kind: type | tuple[type, ...]) -> str:
    return " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))


@contextmanager
def _put_back(generator: torch.Generator, *, only: bool) -> Iterator[None]:
    """Put a generator back after the block, where `only` holds."""
    state = generator.get_state()
    yield
    if only:
        generator.set_state(state)


def _stateful_class() -> Any:
    """Return torchdata's class where it is loaded, since a loader of that class then is one."""
    module = sys.modules.get("torchdata.stateful_dataloader")
    return module.StatefulDataLoader if module else ()
