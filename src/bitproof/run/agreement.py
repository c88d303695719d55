"""Which checkpoint several ranks resume from, and which they keep: those that all of them have.

Every rank saves its own state, at the same batch boundary, under the same name of the save. A crash may come after one
rank's commit and before another's; such a save counts for none. A save begins only when the ranks have agreed on the
one before, so that of one rank at most one is newer than the newest that all have. More than that were lost. Where they
have none in common, only the run's first save can have been cut: its name and its number tell, and a rank without it has
begun a leg all the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bitproof.errors import ResumeRefusedError, RunError
from bitproof.store import Commit, Keep

RANKS, SAVE = "ranks", "save"
"""The facts of a commit: how many ranks saved, and the name of the save."""
_FIRST = "-1"
"""How the name of a leg's first save ends."""


def save_name(leg: str, count: int) -> str:
    """Name the ``count``-th save of a leg, from 1."""
    return f"{leg}-{count}"


class Held(msgspec.Struct, frozen=True):
    """What one rank has.

    Args:
        saves: names of its saves, oldest first; one that was gone back to is there twice.
        steps: their steps.
        ranks: how many ranks there were when the newest was saved; None if there is none.
        damaged: whether any was set aside.
        begun: whether it has begun a leg before.
        only: whether it has one save, and that is the first that its store ever had.
    """

    saves: list[str]
    steps: list[int]
    ranks: int | None = None
    damaged: bool = False
    begun: bool = True
    only: bool = False


def held(commits: Sequence[Commit], *, damaged: bool = False, begun: bool = True) -> Held:
    """Describe what a store has.

    Args:
        commits: its, oldest first.
        damaged: whether any was set aside.
        begun: whether the rank has begun a leg before.
    """
    return Held(
        [str(commit.facts.get(SAVE, "")) for commit in commits],
        [commit.step for commit in commits],
        int(commits[-1].facts.get(RANKS, 1)) if commits else None,
        damaged,
        begun,
        only=[commit.sequence for commit in commits] == [1],
    )


def shared(all_ranks: Sequence[Held]) -> list[str]:
    """Return the names of the saves that every rank has, oldest first, as rank 0 has them."""
    common = set(all_ranks[0].saves).intersection(*(one.saves for one in all_ranks))
    return [name for name in all_ranks[0].saves if name in common]


def newest(where: str, all_ranks: Sequence[Held]) -> str | None:
    """Return the name of the newest save that every rank has; None if the run is to begin anew.

    Args:
        where: the run, for messages.
        all_ranks: what each has, by rank.

    Raises:
        ResumeRefusedError: another number of ranks saved, or a rank has lost what the others still have.
    """
    world = len(all_ranks)
    check_world(where, {one.ranks for one in all_ranks}, world)
    common = shared(all_ranks)
    newer = [
        len(one.saves) - 1 - max((i for i, s in enumerate(one.saves) if s in common), default=-1) for one in all_ranks
    ]
    damaged = any(one.damaged for one in all_ranks)
    lost = (max(newer) > 1 and not damaged) or (not common and (damaged or not _cut_at_first(all_ranks)))
    if lost:
        told = "".join(
            f"\n  rank {rank}: "
            + (", ".join(map(str, one.steps)) or "none")
            + (" (some were damaged)" if one.damaged else "")
            for rank, one in enumerate(all_ranks)
        )
        last = f"the newest that all have is {common[-1]}" if common else "they have none in common"
        raise ResumeRefusedError(
            f"{where}: the ranks do not have the same checkpoints, and {last}. Steps of the checkpoints that each has:{told}\n"
            "Put back the missing files (each rank's are in a folder of its own), or begin anew in another folder."
        )
    return common[-1] if common else None


def _cut_at_first(all_ranks: Sequence[Held]) -> bool:
    """Tell whether the ranks have nothing, or some of them the run's very first save, which others had not made yet."""
    having = [one for one in all_ranks if one.saves]
    if not having:
        return True
    first = having[0].saves[0]
    return first.endswith(_FIRST) and all(
        (one.only and one.saves == [first]) if one.saves else one.begun for one in all_ranks
    )


def check_world(where: str, saved: set[int | None], world: int) -> None:
    """Refuse to resume with another number of ranks.

    Raises:
        ResumeRefusedError: both numbers are in the message.
    """
    other = saved - {None, world}
    if other:
        raise ResumeRefusedError(
            f"{where} was saved by {_ranks(max(n for n in other if n is not None))}, and is resumed by {_ranks(world)}. Each rank's "
            "state is its own, so resume with as many, or begin another run from the weights: bitproof export RUN model.safetensors"
        )


@dataclass(frozen=True)
class Chosen:
    """Keep the checkpoints of these saves."""

    saves: frozenset[str]

    def kept(self, commits: Sequence[Commit]) -> set[int]:
        """Return the sequence numbers of those that are kept."""
        return {commit.sequence for commit in commits if commit.facts.get(SAVE) in self.saves}


def chosen(keep: Keep | None, commits: Sequence[Commit], common: Sequence[str]) -> list[str]:
    """Choose the saves to be kept.

    Args:
        keep: the policy; None keeps all that every rank has.
        commits: of the rank that chooses.
        common: names of the saves that every rank has.
    """
    whole = [commit for commit in commits if commit.facts.get(SAVE) in set(common)]
    kept = {commit.sequence for commit in whole} if keep is None else keep.kept(whole)
    return [str(commit.facts[SAVE]) for commit in whole if commit.sequence in kept]


def check_places(where: str, least: Sequence[int], most: Sequence[int]) -> None:
    """Make sure that all ranks are at the same batch boundary.

    Args:
        where: the run, for messages.
        least: the least step, epoch and number of passes that a rank is at.
        most: the greatest.

    Raises:
        RunError: they differ; both are in the message.
    """
    if list(least) != list(most):
        named = zip(("step", "epoch", "passes of the epoch"), least, most, strict=True)
        listed = ", ".join(f"{name} {one} and {other}" for name, one, other in named if one != other)
        raise RunError(
            f"{where}: the ranks are not at the same batch boundary, so they cannot save together: {listed}. Give every rank as "
            "many batches and the same calls of the run; bitproof.data.Loader does."
        )


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
