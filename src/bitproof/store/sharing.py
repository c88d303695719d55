"""Which tensors of a save are left where the last checkpoint has them."""

from collections.abc import Mapping, Sequence

from bitproof.store.manifest import Entry, Pack

_SLACK = 64 << 10  # bytes that are never worth writing again


def share(same: Mapping[int, Entry], packs: Sequence[Pack], new: int) -> dict[int, Entry]:
    """Choose among the tensors that need not be written again.

    A pack is removed only as a whole, so a checkpoint that uses one tensor of a pack keeps all of it. To bound that,
    the packs that a checkpoint uses together hold at most twice its bytes: beyond, the least used packs are left,
    and what was used of them is written again.

    Args:
        same: by any key, the tensors that the last checkpoint has with the same bytes.
        packs: the packs of the last checkpoint.
        new: bytes of the tensors that have to be written.

    Returns:
        Those of ``same`` that are shared.
    """
    chosen = dict(same)
    limit = 2 * (new + sum(entry.nbytes for entry in same.values())) + _SLACK
    while chosen:
        used: dict[int, int] = {}
        for entry in chosen.values():
            used[entry.pack] = used.get(entry.pack, 0) + entry.nbytes
        if sum(packs[i].size for i in used) + new <= limit:
            break
        worst = min(used, key=lambda i: (used[i] / packs[i].size, i))
        new += used[worst]
        chosen = {key: entry for key, entry in chosen.items() if entry.pack != worst}
    return chosen
