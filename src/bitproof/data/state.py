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
        found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        if "order_version" not in found:
            raise LoaderStateError(
                f"loader state: expected the fields {sorted(cls.__annotations__)}, found {found}. "
                "This is not a state of bitproof.data.Loader; load it into the kind of loader that wrote it."
            )
        for name, expected in (("format", STATE_FORMAT), ("order_version", ORDER_VERSION)):
            if state.get(name) != expected:
                raise OrderVersionError(
                    f"loader state: {name} is {state.get(name)!r}, this bitproof has {expected}. The samples would come "
                    "in another order than in the run that wrote the state. Resume with the version of bitproof that "
                    "wrote it, or start the data anew with Loader.set_epoch()."
                )
        fields = {name: _field(state, name, kind) for name, kind in cls.__annotations__.items()}
        if unknown := sorted(set(found) - set(fields)):
            raise LoaderStateError(
                f"loader state: unknown fields {unknown}. It was written by a newer bitproof; resume with that version."
            )
        loaded = cls(**fields)
        first, after = loaded.epoch * loaded.length, (loaded.epoch + 2) * loaded.length
        if not first <= loaded.position < after:
            raise LoaderStateError(
                f"loader state: position must be from {first} to {after - 1} in epoch {loaded.epoch} of {loaded.length} "
                f"samples, found {loaded.position}. The state is damaged or was changed by hand; take another checkpoint."
            )
        return loaded

    def check_data(self, length: int, fingerprint: str) -> None:
        """Check that the state belongs to data of this length and fingerprint.

        Raises:
            DataChangedError: it does not.

        """
        for what, then, now in (("length", self.length, length), ("fingerprint", self.fingerprint, fingerprint)):
            if then != now:
                raise DataChangedError(
                    f"the data set changed: {what} was {then!r} when the state was saved and is {now!r} now. "
                    "The run would go on with other samples: some seen twice, some never, and no longer the same bits. "
                    "Resume with the data of the run, or accept the change with "
                    "load_state_dict(state, accept_changed_data=True)."
                )


def _field(state: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = state.get(name)
    least: int | None = {"position": 0, "epoch": 0, "length": 1}.get(name)
    expected = kind.__name__ if least is None else f"{kind.__name__} of {least} or more"
    if type(value) is not kind or (isinstance(value, int) and least is not None and value < least):
        raise LoaderStateError(
            f"loader state: field {name!r} must be {expected}, found {value!r}. The state is damaged or was changed by "
            "hand; take another checkpoint."
        )
    return value
