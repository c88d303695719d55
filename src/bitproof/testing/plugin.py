"""pytest plugin: a resume proof that a project keeps as a test in its CI.

pytest imports this in every run of every project that has bitproof installed, so nothing heavy is imported until the
fixture is called.
"""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from bitproof.compare.verdict import Verdict
    from bitproof.prove.process import Finished

    Moments = int | float | str
    Command = str | Sequence[str]


class ProveResume:
    """Proves that a training command resumes bit for bit: what the ``prove_resume`` fixture gives.

    Args:
        work: folder for trails and ``{out}`` folders.
    """

    def __init__(self, work: Path) -> None:
        self.work = work

    def __call__(
        self,
        command: Command,
        *,
        resume_args: Command = (),
        resume_command: Command = (),
        output: str | os.PathLike[str] | None = None,
        kill: Moments | Sequence[Moments] = (),
        crashes: int | None = None,
        signal: str = "KILL",
        steps: int | None = None,
        reference: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        control: bool = True,
        jobs: int = 1,
        deterministic: bool = False,
        seed: int | None = None,
    ) -> Verdict:
        """Run the command, cut it off, resume it, and compare; fail the test unless it is identical.

        The options are those of ``bitproof prove``. A text is split as a shell would; a list is taken as it is. The
        word ``python`` at the start of a command stands for the interpreter that runs the tests.

        Args:
            command: the training command; ``{out}`` stands for a fresh folder.
            resume_args: appended for the resumed leg.
            resume_command: run for the resumed leg instead of the command.
            output: a folder that the command always writes to; it is put back.
            kill: a moment such as 13, "13.2", "5,9", "every" or "during-save"; several in a list are separate trials.
            crashes: spread this many crashes over one run.
            signal: sent instead of KILL.
            steps: end every leg after this step.
            reference: a trail to reuse as the reference.
            timeout: seconds for each leg.
            control: repeat the reference before a cause is called certain.
            jobs: trials that run at the same time.
            deterministic: set in every leg what makes PyTorch repeat.
            seed: with ``deterministic``, seed every generator, too, before the script.

        Returns:
            The verdict, which is ``identical``.

        Raises:
            UsageError: the options are wrong.
            LaunchError: the command cannot be started.
        """
        from bitproof.determinism import chosen  # noqa: PLC0415  # see the module's docstring
        from bitproof.prove import plan  # noqa: PLC0415
        from bitproof.prove.options import Options  # noqa: PLC0415
        from bitproof.prove.prove import prove  # noqa: PLC0415

        __tracebackhide__ = True
        kills = [kill] if isinstance(kill, (int, float, str)) else list(kill)
        verdict = prove(
            Options(
                command=_words("command", command),
                resume_args=plan.split("resume_args", resume_args)
                if isinstance(resume_args, str)
                else list(resume_args),
                resume_command=_words("resume_command", resume_command),
                output=Path(output) if output is not None else None,
                work=self.work,
                wanted=[plan.parse(str(moment)) for moment in kills],
                crashes=crashes,
                steps=steps,
                reference=Path(reference) if reference is not None else None,
                signal_number=plan.signal_number(signal),
                timeout=timeout,
                control=control,
                jobs=jobs,
                deterministic=chosen(deterministic=deterministic, seed=seed),
            ),
            _Silent(),
        )
        if verdict.verdict != "identical":
            pytest.fail(_text(verdict), pytrace=False)
        return verdict


@pytest.fixture
def prove_resume(tmp_path: Path) -> ProveResume:
    """Prove that a training command resumes bit for bit: ``prove_resume("python train.py --out {out}", kill=13)``."""
    return ProveResume(tmp_path / "bitproof")


class _Silent:
    """Shows nothing: pytest has its own way to say that a test is running."""

    def begin(self, name: str, log: Path, total: int | None) -> _Silent:
        del name, log, total
        return self

    def tick(self, elapsed: float, steps: int | None) -> None:
        del elapsed, steps

    def end(self, finished: Finished) -> None:
        del finished

    def note(self, text: str) -> None:
        del text


def _words(option: str, command: Command) -> list[str]:
    from bitproof.prove import plan  # noqa: PLC0415

    words = plan.split(option, command) if isinstance(command, str) else list(command)
    return [sys.executable, *words[1:]] if words and words[0] == "python" else words


def _text(verdict: Verdict) -> str:
    from rich.console import Console  # noqa: PLC0415

    from bitproof.report.terminal import render  # noqa: PLC0415

    written = io.StringIO()
    render(verdict, Console(file=written, width=120), verbose=True)
    return f"{shlex.join(verdict.command)}\n{written.getvalue()}"
