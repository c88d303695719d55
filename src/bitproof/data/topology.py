"""Which of how many processes this one is."""

import os

from torch import distributed

from bitproof.data.errors import TopologyError


def find_topology(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return (rank, world size): as given, else torch.distributed's, else one process.

    Raises:
        TopologyError: only one is given, or a launcher started several and torch.distributed does not know yet.

    """
    if (rank is None) != (world_size is None):
        raise TopologyError(f"pass both rank and world_size, or neither: found rank={rank}, world_size={world_size}.")
    if rank is not None and world_size is not None:
        return rank, world_size
    if _is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    launched = os.environ.get("WORLD_SIZE", "1")
    if launched != "1":
        raise TopologyError(
            f"the launcher set WORLD_SIZE={launched}, and torch.distributed is not initialised: every rank would read "
            "all samples. Call torch.distributed.init_process_group() first, or pass rank= and world_size=."
        )
    return 0, 1


def is_launched() -> bool:
    """Return whether this process is one of several: torch.distributed or a launcher says so."""
    return _is_initialized() or os.environ.get("WORLD_SIZE", "1") != "1"


def _is_initialized() -> bool:
    return distributed.is_available() and distributed.is_initialized()
