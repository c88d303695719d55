"""The state of a loader with a batch sampler: what is stored of it, and what must match when it is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from bitproof.data.errors import LoaderStateError
from bitproof.data.state import fields_of

SAMPLER_STATE_FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True)
class SamplerState:
    """What a resume needs to know. The same on all ranks.

    Args:
        format: version of these fields.
        order_version: version of per-sample seeds.
        sampler: type of the batch sampler.
        num_replicas: world size that the batch sampler is made for; 0 where its batches are those of all ranks together.
        seed: of what the batch sampler draws, and of samples.
        epoch: the pass in progress.
        batch: batches taken in it.
        sample: samples taken in it, by all ranks together (with num_replicas: by this one).
        digest: XXH3-64 of the indices taken in it.
        length: samples in the data set.
        fingerprint: of the data, see `bitproof.data.fingerprint_of`.
        start: the batch sampler's own state at the start of the epoch, where it has one.

    """

    format: int
    order_version: int
    sampler: str
    num_replicas: int
    seed: int
    epoch: int
    batch: int
    sample: int
    digest: str
    length: int
    fingerprint: str
    start: Any

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain values, with the batch sampler's own state as it is."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, state: Any) -> "SamplerState":
        """Check values field by field, and take them.

        Raises:
            LoaderStateError: a field is missing, unknown, of another type or out of range; or it is another kind of state.
            OrderVersionError: it belongs to another version.

        """
        if isinstance(state, Mapping) and "shuffle" in state and "position" in state:
            raise LoaderStateError(
                "loader state: it was saved without a batch sampler, and this Loader has one: batches would hold other "
                "samples. Make the Loader with batch_size= as the run did."
            )
        return cls(**fields_of(state, cls, SAMPLER_STATE_FORMAT))

    def check_sampler(self, sampler: str, num_replicas: int) -> None:
        """Check that the state belongs to a batch sampler of this type and world size.

        Raises:
            LoaderStateError: it does not.

        """
        if self.sampler != sampler:
            raise LoaderStateError(
                f"loader state: the batch sampler was {self.sampler} when it was saved and is {sampler} now: batches would "
                "hold other samples. Resume with the batch sampler of the run."
            )
        if self.num_replicas != num_replicas:
            then, now = (
                f"made for {count} ranks" if count else "made for no ranks"
                for count in (self.num_replicas, num_replicas)
            )
            raise LoaderStateError(
                f"loader state: the batch sampler was {then} when it was saved and is {now} now (its num_replicas): its "
                "batches are those of one rank, and no other division of the data can go on from there. Resume with one "
                f"{then}; or use a batch sampler that gives global batches, without rank and num_replicas: the Loader shares "
                "those among any number of ranks."
            )
