"""The parts of a run's state: the objects that its loop trains with, by name."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bitproof import state
from bitproof.errors import BitproofError, ResumeRefusedError, RunStateError, UsageError
from bitproof.run.notices import ForgottenWarning, ResumeDiffersWarning, say, warn
from bitproof.run.resuming import Resumed


class Parts:
    """The parts by name, some of which may be made only when the loop first needs them.

    Args:
        live: those that are there.
        later: names of those that are not; what was saved of them waits for them, and is saved again meanwhile.
        where: the run, for messages.
        strict: refuse to go on if a part was not put back; else warn.

    Raises:
        UsageError: there are none.
        RunStateError: one has no state that could be put back.
    """

    def __init__(self, live: Mapping[str, Any], later: Collection[str], *, where: str, strict: bool) -> None:
        if not live:
            raise UsageError("Run(): name the parts of the state, such as model=model, optimizer=optimizer.")
        if isinstance(later, str):
            raise UsageError(f"Run(later={later!r}): expected names in a list, such as later=[{later!r}].")
        self.live: dict[str, Any] = {}
        """Those that are there."""
        self._announced, self._later, self._where, self._strict = frozenset(later), set(later), where, strict
        self._waiting: dict[str, Any] = {}
        self._layout = 0
        self._named_forgotten = False
        self._resumed: int | None = None
        self._add(live, "Run")

    def register(self, parts: Mapping[str, Any]) -> None:
        """Add parts that were announced, and put back what was saved of them.

        Raises:
            UsageError: one was not announced, or is registered already.
            RunStateError: one has no state that could be put back.
            ResumeRefusedError: what was saved does not fit.
        """
        for name in parts:
            if name not in self._later:
                known = "it is one already" if name in self.live else f"expected one of later={sorted(self._later)!r}"
                raise UsageError(f"run.register({name}=…): {known}. Announce it with Run(later=[{name!r}]).")
        self._add(parts, "run.register")
        for name in parts:
            self._later.remove(name)
            if self._resumed is not None and name in self._waiting:
                tree = {"layout": self._layout, "parts": self._waiting}
                self._judge(state.restore_part(name, self.live, tree), self._resumed)
                del self._waiting[name]

    def capture(self) -> dict[str, Any]:
        """Return the state of all parts and generators."""
        tree = state.capture(self.live)
        tree["parts"] |= self._waiting
        return tree

    def put_back(self, resumed: Resumed) -> None:
        """Put the parts and all generators back, in place.

        Raises:
            ResumeRefusedError: a part does not come back, and the run is strict.
        """
        self._resumed, self._layout = resumed.commit.step, resumed.tree["layout"]
        saved = resumed.tree["parts"]
        self._waiting = {name: state.snapshot(saved[name]) for name in self._later if name in saved}
        self._judge(state.restore(self.live, resumed.tree), resumed.commit.step)

    def name_forgotten(self) -> None:
        """Warn, once, of what looks stateful, touches a part, and is none."""
        if not self._named_forgotten:
            self._named_forgotten = True
            for found in state.forgotten(self.live):
                warn(
                    f"Run does not carry a {found.what}: it {found.why}. What to do: {found.remedy}.", ForgottenWarning
                )

    def _add(self, parts: Mapping[str, Any], call: str) -> None:
        for name, part in parts.items():
            if isinstance(part, bool | int | float | complex | str | bytes | tuple | frozenset | np.generic | None):
                raise RunStateError(
                    f"{call}({name}={part!r}): a {type(part).__name__} cannot be changed in place when it is restored. Put it into "
                    f"a dict, such as {name}={{'value': {part!r}}}, and read it from there."
                )
        try:
            state.encode(state.capture({**self.live, **parts}))
        except BitproofError as error:
            sharded = (
                " A Run carries no sharded parameters: save with torch.distributed.checkpoint, and check the resume with: "
                "bitproof prove -- torchrun …"
            )
            raise RunStateError(f"{call}(): {error}{sharded if 'DTensor' in str(error) else ''}") from error
        self.live |= parts

    def _judge(self, report: state.Report, step: int) -> None:
        # One that is made later may not have been there yet at the save, or may not be here yet.
        fine = {(name, "absent") for name in self._announced}
        bad = [part for part in report.parts if part.status != "restored" and (part.name, part.status) not in fine]
        if bad:
            listed = "".join(f"\n  {part.name}: {part.status}: {part.detail}" for part in bad)
            message = f"{self._where}: step {step} did not come back as it was saved:{listed}"
            if self._strict:
                raise ResumeRefusedError(
                    f"{message}\nRegister the same parts as before, or let those start as they are with Run(strict=False)."
                )
            warn(message, ResumeDiffersWarning)
        for note in report.notes:
            say(f"{self._where}: {note}")
