"""Run a command for some steps, with and without determinism in turn, and compare the speeds."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bitproof.determinism import Choice
from bitproof.environment import machine
from bitproof.errors import UsageError
from bitproof.price.answer import FAILED, TIMED, Failure, Price, Reason, Timing, Window, costliest, speed
from bitproof.prove import outputs
from bitproof.prove.legs import Proof, Watcher, drop_output, fresh_output
from bitproof.prove.options import Options
from bitproof.prove.process import Finished, Start, run
from bitproof.prove.prove import begun
from bitproof.trail.launch import check_command, child_environment, why_nothing

WITHOUT = "without"


@dataclass(frozen=True)
class Variant:
    """One setting that is tried.

    Args:
        name: of it.
        does: what it sets, in words.
        choice: the same for the launcher; None for the command as it is.
        part: whether ``--deterministic`` consists of it.
    """

    name: str
    does: str
    choice: Choice | None
    part: bool = False


_PLAIN = Variant(WITHOUT, "the command as it is", None)
_WHOLE = Variant("deterministic", "all that --deterministic sets", Choice())
_WARNING = Variant(
    "deterministic-warn", "all that --deterministic sets, warning of operations that cannot", Choice(warn_only=True)
)
_ALONE = (
    Variant("algorithms", "torch.use_deterministic_algorithms", Choice(groups=("algorithms",)), part=True),
    Variant("onednn", "torch.backends.mkldnn.deterministic", Choice(groups=("onednn",)), part=True),
    Variant("cudnn", "torch.backends.cudnn.deterministic, no benchmark", Choice(groups=("cudnn",)), part=True),
    Variant("cublas", "CUBLAS_WORKSPACE_CONFIG", Choice(groups=("cublas",)), part=True),
    Variant(
        "memory-filling",
        "algorithms, and torch.utils.deterministic.fill_uninitialized_memory",
        Choice(groups=("algorithms",), fill_memory=True),
    ),
)
_ON_GPU = frozenset({"cudnn", "cublas"})


@dataclass(frozen=True)
class Measurement:
    """What to measure.

    Args:
        command: program and arguments; ``{out}`` stands for a fresh folder a leg.
        steps: to time in each leg.
        warm_up: steps before them.
        rounds: legs of each setting.
        output: a folder that the command always writes to.
        work: folder for logs and ``{out}`` folders.
        timeout: seconds for each leg; None for no limit.
        each: measure each setting alone, too.
    """

    command: Sequence[str]
    steps: int = 30
    warm_up: int = 5
    rounds: int = 3
    output: Path | None = None
    work: Path = Path(".bitproof")
    timeout: float | None = None
    each: bool = True


def price(wanted: Measurement, watcher: Watcher) -> Price:
    """Measure what determinism costs on a command.

    Raises:
        UsageError: the options do not fit the command.
        LaunchError: the command cannot be started.
        OutputError: the output folder could not be put back.
    """
    if not wanted.command:
        raise UsageError("there is no command to measure. Write it after --, for example: -- python train.py")
    check_command(wanted.command)
    if wanted.output is not None:
        outputs.check(wanted.output, wanted.work)
    options = Options(command=wanted.command, output=wanted.output, work=wanted.work, timeout=wanted.timeout)
    with begun(options, watcher, "price") as proof:
        found = _Rounds(wanted, proof).run()
    return msgspec.structs.replace(found, folder=str(proof.folder))


class _NoTimingError(Exception):
    """A leg could not be timed."""

    def __init__(self, reason: Reason, message: str, output: list[str]) -> None:
        super().__init__(message)
        self.reason, self.message, self.output = reason, message, output


class _Rounds:
    """Runs all legs, and keeps what they measured."""

    def __init__(self, wanted: Measurement, proof: Proof) -> None:
        self._wanted = wanted
        self._proof = proof
        self._timings: dict[str, dict[int, Timing]] = {}
        self._failures: dict[str, Failure] = {}
        self._variants = [_WHOLE]

    def run(self) -> Price:
        wanted = self._wanted
        base = Price(command=list(wanted.command), steps=wanted.steps, warm_up=wanted.warm_up, rounds=wanted.rounds)
        try:
            for number in range(1, wanted.rounds + 1):
                self._round(number)
        except _NoTimingError as error:
            return msgspec.structs.replace(base, reason=error.reason, message=error.message, output=error.output)
        without = self._timings[WITHOUT]
        settings = [
            msgspec.structs.replace(
                speed(v.name, v.does, part=v.part, timings=self._timings.get(v.name, {}), without=without),
                failure=self._failures.get(v.name),
            )
            for v in self._variants
        ]
        return msgspec.structs.replace(
            base,
            steps=without[1].steps,
            machine=_machine(without[1]),
            seconds=statistics.median(timing.seconds for timing in without.values()),
            without=[timing.per_second for timing in without.values()],
            settings=settings,
            costliest=costliest(settings),
        )

    def _round(self, number: int) -> None:
        plain = self._leg(number, _PLAIN)
        if number == 1 and self._wanted.each:
            self._variants += [v for v in _ALONE if v.name not in _ON_GPU or plain.device is not None]
        for variant in list(self._variants):
            if variant.name not in self._failures:
                self._try(number, variant)

    def _try(self, number: int, variant: Variant) -> None:
        try:
            self._leg(number, variant)
        except _NoTimingError as error:
            self._timings.pop(variant.name, None)
            self._failures[variant.name] = self._failure(number, variant, error)
            if variant is _WHOLE and self._failures[variant.name].operation is not None:
                self._variants.insert(1, _WARNING)
                self._try(number, _WARNING)

    def _leg(self, number: int, variant: Variant) -> Timing:
        wanted, proof, place = self._wanted, self._proof, self._place(number, variant)
        out, control, trail, log = place / "out", place / "control", place / "notes.trail", place / "log"
        out.mkdir(parents=True)
        fresh_output(proof)
        window = Window(warm_up=wanted.warm_up, steps=wanted.steps)
        start = Start(
            command=outputs.fill(wanted.command, out),
            environment=child_environment(
                trail,
                agent="bitproof.price.agent:attach",
                extra={"control": str(control), "window": msgspec.to_builtins(window)},
                deterministic=variant.choice,
            ),
            log=log,
            control=control,
            marker=proof.marker,
            timeout=wanted.timeout,
        )
        watched = proof.watcher.begin(f"round {number} of {wanted.rounds}: {variant.name}", log, None)
        finished = run(start, lambda elapsed: watched.tick(elapsed, None))
        watched.end(finished)
        drop_output(place)
        timing = self._timing(control, trail, finished)
        self._timings.setdefault(variant.name, {})[number] = timing
        return timing

    def _timing(self, control: Path, trail: Path, finished: Finished) -> Timing:
        wanted = self._wanted
        if finished.ending == "timed-out":
            message = f"a leg did not end within {wanted.timeout:g} s. Give it longer with --timeout SECONDS, or fewer --steps."
            raise _NoTimingError("timed-out", message, finished.lines)
        if finished.ending == "failed":
            raise _NoTimingError("command-failed", f"the command failed with {finished.how}", finished.lines)
        timings = [msgspec.json.decode(p.read_bytes(), type=Timing) for p in sorted(control.glob(f"{TIMED}-*.json"))]
        if not timings:
            raise _NoTimingError("no-steps", why_nothing(trail, wanted.command), finished.lines)
        # Of several trainings in one command the longest counts, and of its ranks the slowest.
        steps = max(t.steps for t in timings)
        if not steps:
            message = (
                f"the command took {max(t.taken for t in timings)} steps, and {wanted.warm_up} warm it up, so none is left "
                "to time. Give it a longer run, or fewer steps with --warm-up N."
            )
            raise _NoTimingError("no-steps", message, finished.lines)
        return max((t for t in timings if t.steps == steps), key=lambda t: t.seconds)

    def _failure(self, number: int, variant: Variant, error: _NoTimingError) -> Failure:
        told = sorted((self._place(number, variant) / "control").glob(f"{FAILED}-*.json"))
        if told:
            return msgspec.json.decode(told[0].read_bytes(), type=Failure)
        last = f": {error.output[-1]}" if error.reason == "command-failed" and error.output else ""
        return Failure(summary=error.message + last)

    def _place(self, number: int, variant: Variant) -> Path:
        return self._proof.folder / f"round-{number}" / variant.name


def _machine(timing: Timing) -> dict[str, str | int | None]:
    return {
        "cpu": machine.cpu_model(),
        "cpus": machine.available_cpus(),
        "device": timing.device,
        "threads": timing.threads,
        "torch": timing.torch,
    }
