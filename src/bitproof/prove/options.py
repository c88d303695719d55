"""What to prove, and how; checked before anything is run."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bitproof.determinism import Choice
from bitproof.errors import UsageError
from bitproof.prove import outputs, plan
from bitproof.prove.process import GRACE
from bitproof.trail.launch import check_command


@dataclass(frozen=True)
class Options:
    """What to prove, and how.

    Args:
        command: program and arguments; ``{out}`` stands for a fresh folder a trial.
        resume_args: appended for a resumed leg.
        resume_command: instead of the command, for a resumed leg.
        output: a folder that the command always writes to.
        work: folder for trails and ``{out}`` folders.
        wanted: the faults; none for a telling default.
        crashes: spread this many crashes over one more trial.
        steps: end every leg after this step.
        reference: a trail to reuse as the reference.
        signal_number: what is sent at the fault.
        timeout: seconds for each leg; None for 10 times the reference's own (at least 120 s), and no limit for it.
        control: repeat the reference before a cause is called certain.
        jobs: trials that run at the same time.
        grace: seconds for a leg to end by itself after a signal.
        deterministic: what to set in every leg.
    """

    command: Sequence[str]
    resume_args: Sequence[str] = ()
    resume_command: Sequence[str] = ()
    output: Path | None = None
    work: Path = Path(".bitproof")
    wanted: Sequence[plan.Wanted] = ()
    crashes: int | None = None
    steps: int | None = None
    reference: Path | None = None
    signal_number: int = signal.SIGKILL
    timeout: float | None = None
    control: bool = True
    jobs: int = 1
    grace: float = GRACE
    deterministic: Choice | None = None

    @property
    def tears(self) -> bool:
        """Whether a file is to be left half written."""
        return any(want.write is not None or want.every_write for want in self.wanted)


def check(options: Options) -> None:
    """Refuse what cannot work, before anything is run.

    Raises:
        UsageError: the options contradict each other or the command.
        LaunchError: the command's program was not found.
    """
    if not options.command:
        raise UsageError("there is no command to prove. Write it after --, for example: -- python train.py --out {out}")
    check_command(options.command)
    if options.resume_command:
        check_command(options.resume_command)
    _check_folders(options)
    if options.resume_args and options.resume_command:
        raise UsageError("--resume-args and --resume-command exclude each other: give the one that resumes")
    if options.steps is not None and options.steps < 2:
        raise UsageError(f"--steps {options.steps}: expected at least 2, one before the crash and one after it")
    for want in options.wanted:
        if options.steps is not None and want.kills and want.kills[-1].step > options.steps:
            raise UsageError(f"--kill {want.kills[-1].step}: with --steps {options.steps} there is no such step")
    if options.tears and options.reference is not None:
        raise UsageError(
            "--kill during-save counts the files that the reference writes, which a reused trail does not tell: "
            "leave out --reference"
        )
    if options.jobs > 1 and options.output is not None:
        raise UsageError(
            f"--jobs {options.jobs}: trials that run at the same time need folders of their own, and --output is one for "
            "all. Use {out} in the command, or leave out --jobs."
        )


def _check_folders(options: Options) -> None:
    used = [options.command, options.resume_args, options.resume_command]
    if options.output is None and not any(outputs.PLACEHOLDER in part for parts in used for part in parts):
        raise UsageError(
            "where does the command write its checkpoints? Put {out} in its place, and each trial gets a fresh folder: "
            "bitproof prove -- python train.py --out {out}. If the folder is fixed in the script, name it: "
            "bitproof prove --output runs/ -- python train.py"
        )
    if options.output is not None:
        outputs.check(options.output, options.work)
