"""The loaders of a run: where each one is, under a name, and the generators that they draw from."""

from collections.abc import Mapping
from typing import Any

from bitproof.data import Loader, carry
from bitproof.data.carry import Carried, CarriedStream
from bitproof.data.errors import DataChangedError, LoaderStateError
from bitproof.state import rng


class Carriage:
    """One loader that is carried.

    Args:
        loader: what the user gave.
        name: under which its position is saved.
    """

    def __init__(self, loader: Any, name: str) -> None:
        self.loader, self.name = loader, name
        before = rng.capture_global()
        self.carried: Carried = carry(loader)  # may read samples of a stream, which may draw
        for generator, state in before.items():
            rng.restore_global(generator, state)
        self._broken_off = False
        # Searched once: a data set may hold much. One that workers read draws in the workers, from copies.
        parts = {part: getattr(loader, part, None) for part in ("dataset", "sampler", "generator")}
        self._generators: list[rng.Found] = rng.find_generators(
            {part: found for part, found in parts.items() if found is not None}
        ).found

    def begin(self) -> None:
        """Note that a pass begins."""
        self._broken_off = False

    def break_off(self) -> None:
        """Note that the loop left a pass before its end.

        A plain DataLoader then starts anew, which is what one without a saved position does; ours goes on.
        """
        self._broken_off = not isinstance(self.carried, Loader | CarriedStream)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as of the batch that was yielded last, and the generators."""
        return {
            "position": None if self._broken_off else self.carried.state_dict(),
            "generators": rng.capture_found(self._generators),
        }

    def load_state_dict(self, state: Mapping[str, Any], *, accept_changed_data: bool) -> None:
        """Go to a saved position.

        Raises:
            DataChangedError: it belongs to other data.
            LoaderStateError: it belongs to another kind of loader.
        """
        problems = [
            f"{path}: {problem}"
            for path, problem in rng.restore_found(self._generators, state["generators"])
            if problem
        ]
        if problems:
            raise LoaderStateError(
                f"loader {self.name!r}: a generator that it drew from cannot be put back. {'; '.join(problems)}"
            )
        if state["position"] is None:
            return
        try:
            if accept_changed_data and isinstance(self.carried, Loader):
                self.carried.load_state_dict(state["position"], accept_changed_data=True)
            else:
                self.carried.load_state_dict(state["position"])
        except DataChangedError as error:
            raise DataChangedError(
                f"loader {self.name!r}: {error} In a Run that is run.batches(loader, accept_changed_data=True). If this is another "
                "loader than the run had there, give each a name: run.batches(loader, name=…)."
            ) from error


class Loaders:
    """All loaders of a run by name; the states of those that the loop has not come to yet are kept for them."""

    def __init__(self) -> None:
        self._carriages: dict[str, Carriage] = {}
        self._waiting: dict[str, Any] = {}

    def of(self, loader: Any, name: str) -> Carriage:
        """Return what carries a loader.

        Args:
            loader: what :func:`bitproof.data.carry` takes.
            name: under which its position is saved.

        Raises:
            NotCarriedError: the loader cannot be resumed; the message says why and what to use.
        """
        for known in self._carriages.values():
            if known.loader is loader:
                return known
        self._carriages[name] = Carriage(loader, name)
        return self._carriages[name]

    def go(self, carriage: Carriage, *, accept_changed_data: bool = False) -> None:
        """Let a loader go to its saved position, if it has not yet.

        Args:
            carriage: the loader's.
            accept_changed_data: go on though the data is other than it was.

        Raises:
            DataChangedError: the position belongs to other data.
            LoaderStateError: it belongs to another kind of loader.
        """
        if carriage.name in self._waiting:
            carriage.load_state_dict(self._waiting.pop(carriage.name), accept_changed_data=accept_changed_data)

    def state_dict(self) -> dict[str, Any]:
        """Return every loader's state by name."""
        return self._waiting | {name: one.state_dict() for name, one in self._carriages.items()}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Keep states until the loop comes to their loaders."""
        self._waiting = dict(states)
