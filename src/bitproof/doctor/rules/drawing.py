"""Which generators a run draws from, and when, as its trail shows."""

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from bitproof.trail.reader import Leg

WHOSE = {"torch": "torch's", "python": "Python's", "numpy": "NumPy's"}
"""The global generators by the names that a trail gives them, in words."""
_LOADERS = frozenset({"loader-started", "eval-loader-started"})


def moved(leg: Leg, name: str, seeds: Mapping[int, int] = MappingProxyType({})) -> bool:
    """Tell whether a generator's state changed from the first step on.

    Args:
        leg: one process.
        name: of the generator.
        seeds: states before and after the draws of loaders' seeds, which do not count.
    """
    states = {
        behind(state, seeds) for head in leg.steps for state in (head.rng_start.get(name), head.rng_forward.get(name))
    }
    states.discard(None)
    return len(states) > 1


def behind(state: int | None, seeds: Mapping[int, int]) -> int | None:
    """Return the state behind the seeds that loaders drew from a state on."""
    passed = set()
    while state is not None and state in seeds and state not in passed:
        passed.add(state)
        state = seeds[state]
    return state


def moved_inside(leg: Leg, name: str, *, fetching: bool = True) -> list[int]:
    """List the steps inside which a generator was drawn from, apart from what starting a loader draws.

    Args:
        leg: one process.
        name: of the generator.
        fetching: whether what is drawn while a batch is fetched counts.

    Returns:
        Indices into ``leg.steps``.
    """
    started = Counter(event.step for event in leg.events if event.kind in _LOADERS)
    found = []
    for i, head in enumerate(leg.steps):
        fetched = fetching and i not in started and head.rng_start.get(name) != head.rng_forward.get(name)
        # Where several start, the first pass may be a validation's, and the next loader starts after it.
        alone = i + 1 < len(leg.steps) and i + 1 not in started and started[i] < 2
        after = leg.steps[i + 1].rng_start.get(name) if alone else None
        if fetched or (after is not None and head.rng_forward.get(name) != after):
            found.append(i)
    return found


def seeded(leg: Leg) -> Iterator[str]:
    """Yield the global generators that were seeded, or given a saved state, before the first step."""
    for event in leg.events:
        given = event.kind == "rng-restored" or (event.kind == "seed" and event.data.get("seed") is not None)
        if event.step == 0 and given:
            yield str(event.data.get("generator"))
