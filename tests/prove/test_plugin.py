"""The pytest fixture: a resume proof kept as a test."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kit.proofs import ROOT, TRAIN

pytest_plugins = ["pytester"]


def blocks() -> list[str]:
    """Return the documented examples."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "pytest.md").read_text(), flags=re.DOTALL)


def test_documented(pytester: pytest.Pytester) -> None:
    """The first documented test passes for a script that resumes, as it is written."""
    shutil.copy(TRAIN, pytester.path / "train.py")
    pytester.makepyfile(blocks()[0])
    pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=1)


@pytest.mark.slow
def test_all_documented(pytester: pytest.Pytester) -> None:
    """The other documented tests pass too, with a reference that is recorded once."""
    shutil.copy(TRAIN, pytester.path / "train.py")
    text = pytester.path.joinpath("train.py").read_text()
    text = text.replace('"--steps", type=int, default=10', '"--steps", type=int, default=20')
    text = text.replace('"--passes", type=int, default=1', '"--passes", type=int, default=2')
    text = text.replace('"--on-signal",', '"--on-signal", default="save-and-end",')
    pytester.path.joinpath("train.py").write_text(text)
    bin_ = pytester.path / "bin"
    bin_.mkdir()
    (bin_ / "bitproof").write_text(f'#!/bin/sh\nexec {sys.executable} -m bitproof "$@"\n')
    (bin_ / "bitproof").chmod(0o755)
    (bin_ / "python").symlink_to(sys.executable)
    pytester._monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    pytester.makepyfile(test_one=blocks()[1], test_two=blocks()[2])
    pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=5)


def test_diverged(pytester: pytest.Pytester, reference: Path) -> None:
    """A project's test fails with the verdict as its message, and without a trace into bitproof."""
    pytester.makepyfile(
        f"""
        def test_resume(prove_resume):
            prove_resume(
                ["python", "{TRAIN}", "--out", "{{out}}"],
                resume_args=["--resume", "--forget", "momentum"],
                kill=[5],
                reference="{reference}",
                control=False,
            )
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:randomly")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*DIVERGED at step 4 in optimizer*", "*optimizer-not-restored*", "*What to do:*"])
    result.stdout.no_fnmatch_line("*testing/plugin.py*")


def test_wrong_options(pytester: pytest.Pytester) -> None:
    """A wrong option is an error that names it."""
    pytester.makepyfile(
        """
        import pytest
        from bitproof import BitproofError

        def test_no_out(prove_resume):
            with pytest.raises(BitproofError, match="Put {out} in its place"):
                prove_resume("python train.py")

        def test_kill(prove_resume):
            with pytest.raises(BitproofError, match="expected a step"):
                prove_resume("python train.py {out}", kill="soon")

        def test_not_found(prove_resume):
            with pytest.raises(BitproofError, match="was not found on PATH"):
                prove_resume("no-such-program {out}")
        """
    )
    pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=3)


def test_options_are_those_of_the_command_line() -> None:
    """The fixture takes what ``bitproof prove`` takes, but for what belongs to a terminal."""
    import inspect

    from bitproof.cli.prove import prove
    from bitproof.testing.plugin import ProveResume

    of_terminal = {"work", "json", "html", "verbose", "quiet"}
    renamed = {"signal_name": "signal", "no_control": "control"}
    command_line = {renamed.get(name, name) for name in inspect.signature(prove).parameters} - of_terminal
    assert set(inspect.signature(ProveResume.__call__).parameters) - {"self"} == command_line


def test_light() -> None:
    """The plugin, which every run of pytest imports, brings in nothing heavy."""
    code = "import sys, pytest; before = set(sys.modules); import bitproof.testing.plugin; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split()) == [
        "bitproof", "bitproof.__about__", "bitproof.errors", "bitproof.testing", "bitproof.testing.plugin",
    ]  # fmt: skip
