"""A loader's state: what is stored of it, and what must match when it is loaded."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from bitproof.data.errors import DataChangedError, LoaderStateError, OrderVersionError
from bitproof.data.order import ORDER_VERSION

STATE_FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True)
class LoaderState:
    """What a resume needs to know. The same on all ranks, for any batch size, worker count and world size.

    Args:
        format: version of these fields.
        order_version: version of the order and of per-sample seeds.
        seed: of order and samples.
        shuffle: whether epochs are permuted.
        position: samples consumed by all ranks together, over the endless stream of epochs.
        epoch: the pass in progress. At the end of an epoch it says whether the loop has been told so: position
            ``(epoch + 1) * length`` is an epoch whose batches are all consumed and whose loop has not ended.
        length: samples in an epoch.
        fingerprint: of the data, see `bitproof.data.fingerprint_of`.

    """

    format: int
    order_version: int
    seed: int
    shuffle: bool
    position: int
    epoch: int
    length: int
    fingerprint: str

    def to_dict(self) -> dict[str, int | bool | str]:
        """Return the state as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Any) -> "LoaderState":
        """Check plain values field by field, and take them.

        Raises:
            LoaderStateError: a field is missing, unknown, of another type or out of range.
            OrderVersionError: it belongs to another version of the order.

        """
        if isinstance(state, Mapping) and "sampler" in state and "digest" in state:
            raise LoaderStateError(
                f"loader state: it was saved with the batch sampler {state['sampler']}, and this Loader has none: batches "
                "would hold other samples. Make the Loader with batch_sampler= as the run did."
            )
        loaded = cls(**fields_of(state, cls, STATE_FORMAT))
        first, after = loaded.epoch * loaded.length, (loaded.epoch + 2) * loaded.length
        if not first <= loaded.position < after:
            raise LoaderStateError(
                f"loader state: position must be from {first} to {after - 1} in epoch {loaded.epoch} of {loaded.length} "
                f"samples, found {loaded.position}. The state is damaged or was changed by hand; take another checkpoint."
            )
        return loaded


def fields_of(state: Any, cls: type, expected_format: int) -> dict[str, Any]:
    """Return the fields of a state, each checked against a class's annotations.

    Raises:
        LoaderStateError: a field is missing, unknown, of another type or out of range.
        OrderVersionError: it belongs to another version of the order, or of these fields.

    """
    found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
    if "order_version" not in found:
        raise LoaderStateError(
            f"loader state: expected the fields {sorted(cls.__annotations__)}, found {found}. "
            "This is not a state of bitproof.data.Loader; load it into the kind of loader that wrote it."
        )
    for name, expected in (("format", expected_format), ("order_version", ORDER_VERSION)):
        if state.get(name) != expected:
            raise OrderVersionError(
                f"loader state: {name} is {state.get(name)!r}, this bitproof has {expected}. The samples would come "
                "in another order, or with other randomness, than in the run that wrote the state. Resume with the version "
                "of bitproof that wrote it, or start the data anew with Loader.set_epoch()."
            )
    fields = {name: _field(state, name, kind) for name, kind in cls.__annotations__.items()}
    if unknown := sorted(set(found) - set(fields)):
        raise LoaderStateError(
            f"loader state: unknown fields {unknown}. It was written by a newer bitproof; resume with that version."
        )
    return fields


def check_same_data(then: tuple[int, str], now: tuple[int, str]) -> None:
    """Check that a state's (length, fingerprint) is that of the data.

    Raises:
        DataChangedError: it is not.

    """
    for what, before, after in zip(("length", "fingerprint"), then, now, strict=True):
        if before != after:
            raise DataChangedError(
                f"the data set changed: {what} was {before!r} when the state was saved and is {after!r} now. "
                "The run would go on with other samples: some seen twice, some never, and no longer the same bits. "
                "Resume with the data of the run, or accept the change with "
                "load_state_dict(state, accept_changed_data=True)."
            )


_LEAST: Final = {"position": 0, "epoch": 0, "length": 1, "batch": 0, "sample": 0, "num_replicas": 0}


def _field(state: Mapping[str, Any], name: str, kind: Any) -> Any:
    if name not in state:
        raise LoaderStateError(
            f"loader state: field {name!r} is missing. The state is damaged; take another checkpoint."
        )
    value = state[name]
    if kind is Any:
        return value
    least = _LEAST.get(name)
    expected = kind.__name__ if least is None else f"{kind.__name__} of {least} or more"
    if type(value) is not kind or (isinstance(value, int) and least is not None and value < least):
        raise LoaderStateError(
            f"loader state: field {name!r} must be {expected}, found {value!r}. The state is damaged or was changed by "
            "hand; take another checkpoint."
        )
    return value
