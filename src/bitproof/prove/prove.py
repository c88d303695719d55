"""Prove that a command resumes bit for bit: run it, cut it off, resume it, compare."""

import concurrent.futures
import contextlib
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bitproof.compare.judge import stitch
from bitproof.compare.timeline import Timeline
from bitproof.compare.verdict import Trails, Verdict, worst
from bitproof.errors import UsageError
from bitproof.prove import outputs, plan
from bitproof.prove.control import Control
from bitproof.prove.guard import Guard
from bitproof.prove.legs import Proof, StopError, Watcher, drop_output, read_leg, run_leg, stop
from bitproof.prove.options import Options, check
from bitproof.prove.orders import COVERED, Orders, read_touched, state_keys
from bitproof.prove.trial import Trial
from bitproof.trail.launch import why_nothing
from bitproof.trail.reader import Trail, read_trail

_PATIENCE = 10.0
"""A leg after the reference may take this many times as long as the reference …"""
_LEAST_PATIENCE = 120.0
"""… and at least this many seconds."""


def prove(options: Options, watcher: Watcher) -> Verdict:
    """Run the proof.

    Raises:
        UsageError: the options do not fit the command or its reference.
        LaunchError: the command cannot be started.
        OutputError: the output folder could not be put back.
    """
    check(options)
    with begun(options, watcher, "prove") as proof:
        try:
            verdict = _prove(proof)
        except StopError as error:
            verdict = error.verdict
    if verdict.verdict == "identical":
        for place in proof.folder.iterdir():
            drop_output(place)
    return msgspec.structs.replace(verdict, command=list(options.command))


@contextlib.contextmanager
def begun(options: Options, watcher: Watcher, name: str) -> Iterator[Proof]:
    """Make a new folder for legs, and leave no process and no changed output folder behind, however it ends.

    Args:
        options: what is run, and where.
        watcher: shows what goes on.
        name: the folder's name begins with it.

    Raises:
        UsageError: the work folder cannot be written to, or the output folder cannot be kept.
        OutputError: the output folder could not be put back.
    """
    folder = _new_folder(options.work, name)
    watcher.note(f"trails, logs and {{out}} folders: {folder}")
    proof = Proof(options, watcher, folder, uuid.uuid4().hex, patience=options.timeout)
    kept_file: Path | None = None
    if options.output is not None:
        proof.kept = outputs.keep(options.output, folder)
        kept_file = folder / "output.json"
        kept_file.write_bytes(msgspec.json.encode(proof.kept))
    with Guard(proof.marker, kept_file):
        try:
            yield proof
        finally:
            if proof.kept is not None and kept_file is not None:
                outputs.put_back(proof.kept)
                kept_file.unlink()
                shutil.rmtree(proof.kept.backup, ignore_errors=True)


def _prove(proof: Proof) -> Verdict:
    reference = _reference(proof)
    line = stitch(reference.of_rank(0))
    proof.total = line.last
    writes = len(proof.written)
    wanted = plan.faults(line, list(proof.options.wanted), writes, proof.options.crashes)
    if proof.options.tears:
        proof.watcher.note(f"the reference wrote {writes} files. Covered: {COVERED}")
    _write_states(proof, line)
    control = Control(proof, reference, whole=len(wanted) > 1)
    trials = [
        Trial(
            proof=proof.part(f"trial-{number}"),
            reference=reference,
            line=line,
            control=control,
            fault=fault,
            place=proof.folder / f"trial-{number}",
            name=f"trial {number} of {len(wanted)}: " if len(wanted) > 1 else "",
        )
        for number, fault in enumerate(wanted, start=1)
    ]
    verdicts = _run_all(proof, trials)
    if len(verdicts) == 1:
        return verdicts[0]
    return msgspec.structs.replace(worst(verdicts), trials=verdicts)


def _run_all(proof: Proof, trials: list[Trial]) -> list[Verdict]:
    if proof.options.jobs == 1:
        return [trial.run() for trial in trials]
    with concurrent.futures.ThreadPoolExecutor(proof.options.jobs) as pool:
        try:
            futures = [pool.submit(trial.run) for trial in trials]
            concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_EXCEPTION)
            return [future.result() for future in futures if not future.cancelled()]
        finally:
            # On an error or Ctrl-C: every leg ends at its next look, and no further one starts.
            proof.cancelled.set()
            pool.shutdown(wait=True, cancel_futures=True)


def _new_folder(work: Path, beginning: str) -> Path:
    try:
        work.mkdir(parents=True, exist_ok=True)
        ignore = work / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        name = time.strftime(f"{beginning}-%Y%m%d-%H%M%S")
        for i in range(1000):
            folder = work / (f"{name}-{i}" if i else name)
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder.resolve()
    except OSError as error:
        raise UsageError(
            f"--work {work}: cannot write there ({error.strerror}). Name a folder that can be written."
        ) from error
    raise UsageError(f"--work {work}: no free name for a new folder below it")


def _reference(proof: Proof) -> Trail:
    options = proof.options
    if options.reference is not None:
        trail = read_trail(options.reference)
        if not trail.of_rank(0) or not all(leg.steps for leg in trail.legs):
            raise UsageError(
                f"--reference {options.reference}: this trail holds no complete step. Record the run again."
            )
        if proof.patience is None:
            proof.patience = _patience(sum(leg.steps[-1].seconds for leg in trail.of_rank(0)), options.jobs)
        return trail
    place = proof.folder / "reference"
    finished = run_leg(proof, "reference", place, options.command, 1, Orders(stop_after=options.steps))
    trails = Trails(reference=str(place / "leg-1.trail"))
    if finished.ending == "timed-out":
        message = f"the reference did not end within {proof.patience:g} s, and was ended. Give it longer with --timeout SECONDS, or fewer --steps."
        raise stop("timed-out", message, finished, trails)
    if finished.ending == "failed":
        message = f"the command failed by itself, with {finished.how}"
        raise stop("reference-failed", message, finished, trails)
    recorded = read_leg(place, 1)
    if recorded is None:
        raise stop("no-steps", why_nothing(place / "leg-1.trail", options.command), finished, trails)
    if proof.patience is None:
        proof.patience = _patience(finished.seconds, options.jobs)
    proof.written = [touched for touched in read_touched(place / "control-1") if touched.writer is not None]
    proof.left = outputs.files_below(proof.output_of(place))
    return recorded


def _patience(seconds: float, jobs: int) -> float:
    return max(_LEAST_PATIENCE, _PATIENCE * seconds) * jobs


def _write_states(proof: Proof, line: Timeline) -> None:
    states: dict[str, list[int]] = {}
    for step in range(line.last + 1):
        head = line.head(step + 1)
        for key in state_keys(head.roots) if head is not None else ():
            states.setdefault(key, []).append(step)
    (proof.folder / "states.json").write_bytes(msgspec.json.encode(states))
