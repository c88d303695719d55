"""What ``prove`` tells the agent inside the training process."""

from collections.abc import Mapping

import msgspec

WRITES = "writes"
"""Below the control folder: the files that a leg wrote, a line each."""


class Orders(msgspec.Struct):
    """What the agent is told, as JSON in the environment.

    Args:
        control: folder through which it answers.
        step: cut off after this step of the run, or inside it if ``micro`` is given; None for no such fault.
        micro: after this backward pass of the step.
        updates: optimizer calls that make up the step.
        rank: whose turn it is.
        stop_after: end, undamaged, after this step of the run.
        states: file with the steps at which the reference had which state; for resumed legs.
        not_after: step at which the previous leg was cut off.
        checkpoint: step of the run at which the latest checkpoint was written; counts if the state is not found.
        write: leave the n-th file that is written below ``outputs`` half written.
        outputs: folders whose files count.
        patient: wait to be signalled, then go on; else wait to be killed.
    """

    control: str
    step: int | None = None
    micro: int = 0
    updates: int = 1
    rank: int = 0
    stop_after: int | None = None
    states: str | None = None
    not_after: int = 0
    checkpoint: int = 0
    write: int | None = None
    outputs: list[str] = []
    patient: bool = False


def state_keys(roots: Mapping[str, int]) -> list[str]:
    """Return the keys under which the reference's states are looked up, the most telling first.

    Buffers are left out: inside an accumulation window they have moved on already.
    """
    return [" ".join(f"{roots.get(facet, 0):x}" for facet in facets) for facets in _LOOKED_UP]


_LOOKED_UP = (("weights", "optimizer", "hyperparameters"), ("weights",))
