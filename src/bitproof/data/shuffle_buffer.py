"""A shuffle buffer whose content is part of its state."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from torch.utils.data import IterableDataset

from bitproof.data.errors import BatchError, LoaderStateError
from bitproof.data.keys import Keys
from bitproof.data.order import ORDER_VERSION

BUFFER_FORMAT: Final = 1
_FIELDS: Final = frozenset({"format", "order_version", "size", "seed", "epoch", "drawn", "read", "source", "buffer"})


class ShuffleBuffer(IterableDataset[Any]):
    """Shuffles a stream through a buffer, and resumes exactly.

    The state holds the samples in the buffer, the position of the source, and how many samples were drawn; draw *k* of
    epoch *e* is a function of (seed, e, k), so there is no generator to save. A source with ``state_dict`` and
    ``load_state_dict`` goes straight to its position; any other is read again from its start up to there.

    The state is as large as the buffer: samples are kept as they are, so they must be of kinds that your checkpoint can
    hold. Read it in the process that saves (`DataLoader` with num_workers=0); in a worker its state stays behind.

    Args:
        source: a stream that starts anew each time it is iterated.
        size: samples in the buffer.
        seed: any integer.

    Raises:
        BatchError: size is below 1.

    """

    def __init__(self, source: Iterable[Any], size: int, seed: int = 0) -> None:
        if size < 1:
            raise BatchError(
                f"ShuffleBuffer: size must be 1 or more, found {size}. Read the source itself to not shuffle."
            )
        self.source = source
        self.size = size
        self.seed = int(seed)
        self._epoch = self._drawn = self._read = 0
        self._buffer: list[Any] = []
        self._source_start = _state_of(source)
        self._source_state: Any = self._source_start
        self._resumed = False

    def __iter__(self) -> Iterator[Any]:
        """Go on from a loaded state, or start the next epoch."""
        if not self._resumed:
            self._drawn = self._read = 0
            self._buffer = []
            self._source_state = copy.deepcopy(self._source_start)
        self._resumed = False
        draw, buffer, samples = Keys("shuffle buffer", self.seed), self._buffer, self._open_source()
        self._fill(samples)
        while buffer:
            # 64 hashed bits times the length, of which the upper 64 bits: even to one part in 2^64 / length.
            place = (int.from_bytes(draw.pair(self._epoch, self._drawn), "little") * len(buffer)) >> 64
            buffer[place], buffer[-1] = buffer[-1], buffer[place]
            sample = buffer.pop()
            self._drawn += 1
            self._fill(samples)
            yield sample
        self._epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """Return position and content, as of the sample yielded last."""
        return {
            "format": BUFFER_FORMAT,
            "order_version": ORDER_VERSION,
            "size": self.size,
            "seed": self.seed,
            "epoch": self._epoch,
            "drawn": self._drawn,
            "read": self._read,
            "source": copy.deepcopy(self._source_state),
            "buffer": list(self._buffer),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state: the next iteration goes on after the sample yielded last.

        Raises:
            LoaderStateError: fields are missing, or version or size differ.

        """
        if missing := sorted(_FIELDS - set(state)):
            raise LoaderStateError(
                f"ShuffleBuffer state: fields {missing} are missing, found {sorted(map(str, state))}. Load the state of a "
                "ShuffleBuffer."
            )
        own = {"format": BUFFER_FORMAT, "order_version": ORDER_VERSION, "size": self.size}
        for name, expected in own.items():
            if state[name] != expected:
                raise LoaderStateError(
                    f"ShuffleBuffer state: {name} is {state[name]!r}, expected {expected!r}: samples would come in another "
                    "order than in the run that saved. Resume with the same size and version of bitproof."
                )
        self.seed, self._epoch, self._drawn, self._read = (state[name] for name in ("seed", "epoch", "drawn", "read"))
        self._source_state = copy.deepcopy(state["source"])
        self._buffer = list(state["buffer"])
        self._resumed = True

    def _open_source(self) -> Iterator[Any]:
        if self._source_state is None:
            return islice(iter(self.source), self._read, None)
        self.source.load_state_dict(copy.deepcopy(self._source_state))  # type: ignore[attr-defined]
        return iter(self.source)

    def _fill(self, samples: Iterator[Any]) -> None:
        before = self._read
        for sample in islice(samples, self.size - len(self._buffer)):
            self._buffer.append(sample)
            self._read += 1
        if self._read != before:
            self._source_state = _state_of(self.source)


def _state_of(source: Any) -> Any:
    """Return a copy of the source's state, since some streams give out the one that they go on to change."""
    return copy.deepcopy(source.state_dict()) if hasattr(source, "load_state_dict") else None
