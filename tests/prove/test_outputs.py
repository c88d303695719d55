"""The user's output folder: kept, emptied between legs, and put back byte for byte."""

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from bitproof.errors import OutputError, UsageError
from bitproof.prove import outputs


def picture(folder: Path) -> dict[str, object]:
    """Return all that a folder holds: kinds, modes, bytes and targets of links."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("folder", path.stat().st_mode)
        else:
            found[name] = ("file", path.stat().st_mode, path.read_bytes())
    return found


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a file, an executable, an empty folder, hidden things, and links of every kind."""
    folder = tmp_path / "runs"
    (folder / "deep" / "empty").mkdir(parents=True)
    (folder / "deep" / "model.pt").write_bytes(bytes(range(256)))
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / ".hidden").write_text("x")
    (folder / "latest").symlink_to("deep/model.pt")
    (folder / "nowhere").symlink_to("/does/not/exist")
    (folder / "outside").symlink_to(tmp_path)
    return folder


def test_put_back(runs: Path, tmp_path: Path) -> None:
    """What a run added, changed, removed or replaced is undone, and it can be done again."""
    before, number = picture(runs), runs.stat().st_ino
    kept = outputs.keep(runs, tmp_path)
    (runs / "new").mkdir()
    (runs / "new" / "file").write_text("new")
    (runs / "run.sh").write_text("changed")
    (runs / "latest").unlink()
    shutil.rmtree(runs / "deep")
    (runs / "deep").write_text("a file now")
    outputs.put_back(kept)
    assert picture(runs) == before
    outputs.put_back(kept)
    assert picture(runs) == before
    assert runs.stat().st_ino == number


def test_nothing_beside_it_is_touched(runs: Path, tmp_path: Path) -> None:
    """Folders of the user's that lie beside the output folder stay, whatever their names."""
    for name in ("runs.bitproof-old", "runs.bitproof-new", "runs.old", ".runs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("mine")
    kept = outputs.keep(runs, tmp_path)
    (runs / "x").write_text("x")
    outputs.put_back(kept)
    for name in ("runs.bitproof-old", "runs.bitproof-new", "runs.old", ".runs"):
        assert (tmp_path / name / "mine").read_text() == "mine"


def test_folder_that_did_not_exist(tmp_path: Path) -> None:
    """A folder that the command makes is removed again, with the empty folders above it that were not there."""
    folder = tmp_path / "a" / "b" / "runs"
    kept = outputs.keep(folder, tmp_path)
    folder.mkdir(parents=True)
    (folder / "x").write_text("x")
    outputs.put_back(kept)
    assert not (tmp_path / "a").exists()
    outputs.put_back(kept)
    (folder.parent).mkdir(parents=True)
    (tmp_path / "a" / "log").write_text("written by someone else")
    outputs.put_back(kept)
    assert (tmp_path / "a" / "log").exists()


def test_link_to_a_folder(runs: Path, tmp_path: Path) -> None:
    """A link that leads to the output folder stays a link, and the folder it leads to is put back."""
    link = tmp_path / "link"
    link.symlink_to(runs)
    before = picture(runs)
    outputs.check(link, tmp_path / "work")
    kept = outputs.keep(link, tmp_path)
    (link / "x").write_text("x")
    outputs.put_back(kept)
    assert link.is_symlink()
    assert picture(runs) == before


def test_folder_that_became_something_else(runs: Path, tmp_path: Path) -> None:
    """A command that replaced its folder by a file or a link leaves the user's folder as it was all the same."""
    before = picture(runs)
    kept = outputs.keep(runs, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    runs.rename(elsewhere)
    runs.symlink_to(elsewhere)
    outputs.put_back(kept)
    assert not runs.is_symlink()
    assert picture(runs) == before
    assert picture(elsewhere) == before


def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be emptied and put back is refused, with the reason."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    work = tmp_path / "project" / "runs" / "proofs"
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    for path, said in (
        (tmp_path / "file", "expected a folder, found a file"),
        (tmp_path / "file" / "below", "a part of the path is a file"),
        (tmp_path / "dangling", "which does not exist"),
        (Path(), "the current folder"),
        (tmp_path, "the current folder"),
        (Path("/"), "the current folder"),
        (Path("runs"), "the work folder"),
        (Path("runs/proofs"), "the work folder"),
    ):
        with pytest.raises(UsageError, match=said):
            outputs.check(path, work)
    outputs.check(Path("runs/proofs/below"), work)
    outputs.check(Path("other"), work)


def test_no_room(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose copy does not fit is refused before anything is written, with both sizes."""
    with (runs / "huge").open("wb") as file:
        file.truncate(3_000_000_000)  # a hole: takes no room here
    usage = namedtuple("usage", "total used free")  # noqa: PYI024  # as shutil's
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 1_000_000_000))
    with pytest.raises(UsageError, match=r"it holds 3\.0 GB, .* where 1\.0 GB are free"):
        outputs.keep(runs, tmp_path)
    assert not (tmp_path / "output-before").exists()


def test_what_cannot_be_copied(runs: Path, tmp_path: Path) -> None:
    """A folder with something that is no file is refused, by its name, and no half copy stays."""
    os.mkfifo(runs / "pipe")
    with pytest.raises(UsageError, match="pipe"):
        outputs.keep(runs, tmp_path)
    assert not (tmp_path / "output-before").exists()


def test_copy_is_named_when_it_cannot_be_put_back(runs: Path, tmp_path: Path) -> None:
    """If the folder cannot be put back, the message says where its content is."""
    kept = outputs.keep(runs, tmp_path)
    shutil.rmtree(runs)
    shutil.move(tmp_path / "output-before", tmp_path / "moved")
    with pytest.raises(OutputError, match=r"could not be put back: .* is whole in .*output-before"):
        outputs.put_back(kept)
