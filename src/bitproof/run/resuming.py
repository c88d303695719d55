"""The checkpoint that a run goes on from: the newest good one, on every rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitproof import state
from bitproof.errors import CheckpointCorruptError, ResumeRefusedError
from bitproof.run.agreement import RANKS, SAVE, Chosen, Held, check_world, held, newest, shared
from bitproof.run.notices import say
from bitproof.run.proof import Legs
from bitproof.run.ranks import Ranks
from bitproof.store import Checkpoint, Commit, Store

FORMAT = 1
"""Version of the tree that a checkpoint of a run holds."""


@dataclass(frozen=True)
class Resumed:
    """The checkpoint that a leg goes on from."""

    commit: Commit
    tree: Mapping[str, Any]
    """What was captured. It maps the files: drop it, and they can be pruned."""


def read(store: Store, ranks: Ranks, folder: Path) -> Resumed | None:
    """Open the newest checkpoint that is good, with several ranks: on every rank.

    Args:
        store: this rank's.
        ranks: the processes that resume together.
        folder: the run's.

    Returns:
        The checkpoint; None if there is none, and the run is to begin.

    Raises:
        CheckpointCorruptError: there are checkpoints, and none is good.
        ResumeRefusedError: it is of another version, of another number of ranks, or not the same on all ranks.
    """
    before = len(store.problems)
    checkpoint = store.latest() if ranks.world == 1 else _newest_of_all(store, ranks, folder)
    for problem in store.problems[before:]:
        say(f"a checkpoint is damaged and was set aside: {problem}")
    if checkpoint is None:
        return None
    check_world(str(folder), {int(checkpoint.facts.get(RANKS, 1))}, ranks.world)
    tree = state.decode(checkpoint.document, checkpoint.tensors)
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        found = tree.get("format") if isinstance(tree, dict) else None
        raise ResumeRefusedError(
            f"{folder}: the checkpoint of step {checkpoint.step} has format {found!r}, this bitproof has {FORMAT}. "
            "Resume with the version of bitproof that wrote it, or start in another folder."
        )
    return Resumed(checkpoint.commit, tree)


def _newest_of_all(store: Store, ranks: Ranks, folder: Path) -> Checkpoint | None:
    before = len(store.problems)
    begun = Legs.begun(store.path)
    store.latest(verify=False)  # sets aside what cannot even be opened
    while True:
        commits = store.checkpoints()
        answers = ranks.gather(held(commits, damaged=len(store.problems) > before, begun=begun), Held)
        save = newest(str(folder), answers)
        if save is None:
            if commits:
                say(f"{folder}: the first checkpoint was not saved by every rank; the run begins anew")
            return None
        commit = next(one for one in reversed(commits) if one.facts.get(SAVE) == save)
        checkpoint = None
        try:
            checkpoint = store.open(sequence=commit.sequence)
            checkpoint.verify()
        except CheckpointCorruptError as error:
            store.set_aside(commit.sequence, str(error))
            checkpoint = None
        if all(ranks.gather(checkpoint is not None, bool)):
            # What a crash left on some ranks only can never be resumed from.
            store.prune(Chosen(frozenset(shared(answers))))
            return checkpoint
