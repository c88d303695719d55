"""The state of a random number generator of any library, without drawing from it."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from bitproof.state.errors import StateCorruptError, StateMismatchError, UnsupportedStateError
from bitproof.state.paths import Path, say, type_name

GENERATORS = (random.Random, torch.Generator, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
BIT_GENERATORS: Mapping[str, type[np.random.BitGenerator]] = {
    name: getattr(np.random, name) for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
}


def is_known(generator: Any) -> bool:
    """Tell whether a generator's whole state can be taken; a subclass may keep more than its base."""
    if type(generator) is np.random.Generator:
        generator = generator.bit_generator
    if isinstance(generator, np.random.BitGenerator):
        return BIT_GENERATORS.get(type(generator).__name__) is type(generator)
    return type(generator) in {random.Random, torch.Generator, np.random.RandomState}


def generator_state(generator: Any, path: Path = ()) -> Any:
    """Return a generator's state as plain data, without drawing from it.

    Args:
        generator: a ``random.Random``, ``torch.Generator``, or NumPy ``Generator``, ``RandomState`` or bit generator.
        path: where it is, for the message.

    Raises:
        UnsupportedStateError: it is of a class whose state is not known.
    """
    if not is_known(generator):
        raise _unknown(generator, path)
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    seed = generator.seed_seq
    spawning = None
    if type(seed) is np.random.SeedSequence:
        spawning = {
            "entropy": seed.entropy,
            "spawn_key": tuple(seed.spawn_key),
            "pool_size": seed.pool_size,
            "n_children_spawned": seed.n_children_spawned,
        }
    return {"state": generator.state, "seed": spawning}


def make_bit_generator(name: str, state: Any, seed: Any) -> np.random.BitGenerator:
    """Make a bit generator of a known class in a state; with a seed sequence if it had one."""
    kind = BIT_GENERATORS.get(name)
    if kind is None:
        raise StateCorruptError(
            f"the state document names a bit generator {name!r}; known are {sorted(BIT_GENERATORS)}"
        )
    generator = kind() if seed is None else kind(np.random.SeedSequence(**seed))
    generator.state = state
    return generator


def make_random_state(state: Any) -> np.random.RandomState:
    """Make a legacy generator from what its ``get_state(legacy=False)`` gave."""
    kind = BIT_GENERATORS.get(state["bit_generator"])
    if kind is None:
        raise StateCorruptError(f"the state document names a bit generator {state['bit_generator']!r}")
    made = np.random.RandomState(kind())
    made.set_state(state)
    return made


def restore_generator(live: Any, saved: Any, path: Path = ()) -> None:
    """Put a generator into the state of another, in place.

    Args:
        live: the generator to change.
        saved: one of the same class; NumPy generators also need the same bit generator.
        path: where it is, for the message.

    Raises:
        StateMismatchError: the kinds differ, or the live one has spawned more children than the saved one had.
    """
    if isinstance(live, np.random.Generator) and isinstance(saved, np.random.Generator):
        live, saved = live.bit_generator, saved.bit_generator
    if type(live) is not type(saved):
        msg = f"{say(path)} was a {type(saved).__name__} when it was saved and is a {type(live).__name__} now; make the same kind of generator"
        raise StateMismatchError(msg)
    if isinstance(live, random.Random):
        live.setstate(saved.getstate())
    elif isinstance(live, torch.Generator):
        if live.device.type != saved.device.type:
            msg = f"{say(path)} was a generator for {saved.device} when it was saved and is one for {live.device} now"
            raise StateMismatchError(msg)
        live.set_state(saved.get_state())
    elif isinstance(live, np.random.RandomState):
        state: Any = saved.get_state(legacy=False)
        now: Any = live.get_state(legacy=False)
        if state["bit_generator"] != now["bit_generator"]:
            msg = f"{say(path)} drew from {state['bit_generator']} when it was saved and draws from {now['bit_generator']} now"
            raise StateMismatchError(msg)
        live.set_state(state)
    else:
        live.state = saved.state
        _restore_spawning(live, saved, path)


def _restore_spawning(live: np.random.BitGenerator, saved: np.random.BitGenerator, path: Path) -> None:
    """Bring the count of spawned children to the saved one: it decides what the next child will be."""
    old, new = saved.seed_seq, live.seed_seq
    if type(old) is not np.random.SeedSequence or type(new) is not np.random.SeedSequence:
        return
    if old.n_children_spawned == 0 and new.n_children_spawned == 0:
        return
    same = old.generate_state(4).tolist() == new.generate_state(4).tolist()
    if not same or new.n_children_spawned > old.n_children_spawned:
        # A seed sequence can only be run forward.
        now = {"entropy": new.entropy, "n_children_spawned": new.n_children_spawned}
        was = {"entropy": old.entropy, "n_children_spawned": old.n_children_spawned}
        msg = f"{say(path)} has spawned children, and its seed sequence cannot be put back: saved {was}, live {now}. Make it from the same seed before restoring."
        raise StateMismatchError(msg)
    new.spawn(old.n_children_spawned - new.n_children_spawned)


def _unknown(generator: Any, path: Path) -> UnsupportedStateError:
    msg = f"{say(path)} is a {type_name(generator)}, whose state cannot be taken; use one of {', '.join(BIT_GENERATORS)}, random.Random or torch.Generator"
    return UnsupportedStateError(msg)
