"""Damaged, forged and hostile checkpoints are noticed and do nothing."""

import errno
import json
import os
import pickle
import random
import shutil
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors import safe_open
from xxhash import xxh3_128_hexdigest

from bitproof.errors import CheckpointCorruptError, StoreVersionError
from bitproof.store import Keep, Store, System
from bitproof.testing.store import files_of, flip, same_bits


class Quick(System):
    """A system whose fsync does nothing: these tests cut no power."""

    def fsync(self, descriptor: int) -> None:
        """Do nothing."""


def state(step: int) -> dict[str, torch.Tensor]:
    """Two tensors; the second changes every other step, so that neighbours share it."""
    return {"w": torch.full((60,), float(step)), "shared": torch.full((700,), step // 2)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of four checkpoints, of which neighbours share a pack."""
    with Store(tmp_path / "s", system=Quick()) as store:
        for step in (2, 3, 4, 5):
            store.save(f"document {step}".encode(), state(step), step=step, facts={"loss": 1 / step})
    return tmp_path / "s"


def users_of(store: Store, name: str, byte: int) -> set[int]:
    """Return the sequence numbers of the checkpoints that need a byte of a file."""
    if name.endswith(".json"):
        return {int(Path(name).stem)}
    users = set()
    for commit in store.checkpoints():
        contents = store._commits.read(commit.sequence).contents()
        for entry in [contents.document, *contents.tensors.values()]:
            pack = commit.packs[entry.pack]
            inside = byte < pack.header[0] or entry.offset <= byte < entry.offset + entry.nbytes
            if pack.name == Path(name).stem and inside:
                users.add(commit.sequence)
    return users


def test_a_thousand_flipped_bits_are_all_noticed(folder: Path) -> None:
    """1,000 single-bit flips over all files: each is found by verify, and resume takes the newest untouched one."""
    with Store(folder, system=Quick()) as store:
        originals = {name: data for name, data in files_of(folder).items() if data and name != "writer.json"}
        numbers = [commit.sequence for commit in store.checkpoints()]
        places = [(name, bit) for name, data in originals.items() for bit in range(8 * len(data))]
        chosen = random.Random(0).sample(places, 1000)
        users = {(name, bit): users_of(store, name, bit // 8) for name, bit in chosen}
    noticed = said = fell_back = 0
    for name, bit in chosen:
        flip(folder / name, bit)
        with Store(folder, system=Quick()) as store:
            problems = store.verify()
            noticed += str(folder / name) in {str(problem.path) for problem in problems}
            expected = max(set(numbers) - users[name, bit])
            latest = store.latest()
            assert latest is not None
            assert latest.commit.sequence == expected, (name, bit)
            assert latest.document == f"document {latest.step}".encode()
            assert all(same_bits(latest.tensors[key], tensor) for key, tensor in state(latest.step).items())
            fell_back += expected != numbers[-1]
            said += len(store.problems) == len([number for number in numbers if number > expected])
        for path in (folder / "quarantine").glob("*"):
            path.rename(folder / "checkpoints" / path.name)
        (folder / name).write_bytes(originals[name])
    print(f"1,000 flips: {noticed} noticed, {fell_back} made resume fall back, {said} reported rightly")
    assert (noticed, said) == (1000, 1000)
    assert fell_back > 100


def test_a_read_that_fails_once_is_tried_again(folder: Path) -> None:
    """A passing read error does not set a good checkpoint aside; a lasting one is reported with its reason."""

    class Failing(Quick):
        times = 1

        def read(self, path: Path) -> bytes:
            if path.name == "000000004.json" and self.times:
                self.times -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().read(path)

    system = Failing()
    for times, expected in ((1, 4), (99, 3)):
        system.times = times
        with Store(folder, system=system) as store:
            latest = store.latest()
            assert latest is not None
            assert latest.commit.sequence == expected
            assert ("Input/output error" in str(store.problems)) == (expected == 3)


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_cut_and_missing_files_are_noticed(folder: Path, cut: int) -> None:
    """Each file of the newest checkpoint in turn, cut or removed: the one before it is taken."""
    with Store(folder, system=Quick()) as store:
        newest = store.checkpoints()[-1]
    names = ["checkpoints/000000004.json", *(f"objects/{p.name[:2]}/{p.name}.safetensors" for p in newest.packs)]
    for name in names:
        copy = folder.with_name("copy")
        shutil.copytree(folder, copy)
        if cut == -1:
            (copy / name).unlink()
        else:
            os.truncate(copy / name, (copy / name).stat().st_size - 1 if cut == 1 else cut)
        with Store(copy, system=Quick()) as store:
            latest = store.latest()
            assert latest is not None
            assert latest.commit.sequence < 4
            assert all(same_bits(latest.tensors[key], tensor) for key, tensor in state(latest.step).items())
            assert (cut == -1 and name == names[0]) or store.problems
        shutil.rmtree(copy)


def test_a_copy_under_a_higher_number_is_not_the_newest(folder: Path) -> None:
    """A commit copied to another number is a copy, is said to be one, and is not taken."""
    shutil.copy(folder / "checkpoints" / "000000002.json", folder / "checkpoints" / "000000009.json")
    with Store(folder, system=Quick()) as store:
        latest = store.latest()
        assert latest is not None
        assert latest.commit.sequence == 4
        assert "is a copy of checkpoint 2" in store.problems[0].what
        assert store.save(b"{}", state(6), step=6).sequence == 10


def test_a_resumed_run_overwrites_no_checkpoint(folder: Path) -> None:
    """Going on from an older step adds checkpoints; the files of those that are there keep every bit."""
    before = files_of(folder)
    with Store(folder, system=Quick()) as store:
        for step in (3, 4):
            store.save(b"other", state(step + 10), step=step)
    after = files_of(folder)
    assert {name: after[name] for name in before} == before


def test_a_rotten_shared_tensor_is_written_again(folder: Path) -> None:
    """A tensor that the last checkpoint holds damaged is not shared: the new checkpoint is whole."""
    with Store(folder, system=Quick()) as store:
        entry = store._commits.read(4).contents().tensors["shared"]
        pack = store.checkpoints()[-1].packs[entry.pack]
    flip(folder / "objects" / pack.name[:2] / f"{pack.name}.safetensors", 8 * (entry.offset + entry.nbytes) - 3)
    with Store(folder, system=Quick()) as store:
        commit = store.save(b"new", state(5), step=6)
        assert commit.written >= state(5)["shared"].nbytes
        assert "Damaged in checkpoint 4 and written again: 'shared'" in store.notes[0]
        latest = store.latest()
        assert latest is not None
        assert latest.step == 6
        assert store.problems == []


def forge(folder: Path, **changes: object) -> Path:
    """Rewrite the newest manifest with changes, and a digest that is right for them."""
    path = folder / "checkpoints" / "000000004.json"
    body = json.loads(path.read_bytes())["checkpoint"]
    body.update(changes)
    encoded = msgspec.json.encode(body)
    path.write_bytes(
        msgspec.json.encode({"xxh3_128": xxh3_128_hexdigest(encoded), "checkpoint": msgspec.Raw(encoded)}) + b"\n"
    )
    return path


@pytest.mark.parametrize(
    "name",
    ["../../outside", "/etc/passwd", "..", "", "a" * 31 + "/", "A" * 32, "a" * 33, "../" * 10 + "aa", "a" * 32 + "\n"],
)
def test_a_manifest_that_names_a_path_is_refused(folder: Path, name: str) -> None:
    """A pack's name that is not 32 hex digits is refused, whatever it points to, and nothing outside is touched."""
    outside = folder.parent / "outside.safetensors"
    outside.write_bytes(b"secret")
    packs = [{"name": name, "size": 6, "header": [0, "0" * 32]}]
    forge(folder, packs=packs)
    with Store(folder, system=Quick()) as store:
        latest = store.latest()
        assert latest is not None
        assert latest.commit.sequence == 3
        store.save(b"{}", state(6), step=6, keep=Keep(1))
        store.gc(quarantine=True)
    assert outside.read_bytes() == b"secret"


@pytest.mark.parametrize("what", ["file", "fan-out", "objects", "checkpoints"])
def test_a_link_out_of_the_store_is_refused(folder: Path, what: str) -> None:
    """A link in place of a file or folder of the store is not followed."""
    with Store(folder, system=Quick()) as store:
        pack = store.checkpoints()[-1].packs[-1].name
    place = {
        "file": folder / "objects" / pack[:2] / f"{pack}.safetensors",
        "fan-out": folder / "objects" / pack[:2],
        "objects": folder / "objects",
        "checkpoints": folder / "checkpoints",
    }[what]
    moved = place.rename(folder.parent / "moved")
    place.symlink_to(moved)
    before = moved.read_bytes() if moved.is_file() else files_of(moved)
    if what in {"objects", "checkpoints"}:
        with pytest.raises(CheckpointCorruptError, match="is a link"):
            Store(folder, system=Quick())
    else:
        with Store(folder, system=Quick()) as store:
            latest = store.latest()
            assert latest is not None
            assert latest.commit.sequence == 3
    assert (moved.read_bytes() if moved.is_file() else files_of(moved)) == before


class Runs:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._marker,)


def test_bytes_that_would_run_code_run_nothing(folder: Path) -> None:
    """A pickle in place of a manifest or a pack, or as the document, is bytes: refused or returned, never run."""
    marker = folder.parent / "it-ran"
    attack = pickle.dumps(Runs(marker))
    torch_file = folder.parent / "attack.pt"
    torch.save({"w": Runs(marker)}, torch_file)
    with Store(folder, system=Quick()) as store:
        newest = store.save(attack, state(6), step=6)
        opened = store.latest()
        assert opened is not None
        assert opened.document == attack
    for data in (attack, torch_file.read_bytes()):
        for path in (
            folder / "checkpoints" / "000000005.json",
            folder / "objects" / newest.packs[-1].name[:2] / f"{newest.packs[-1].name}.safetensors",
        ):
            copy = folder.with_name("copy")
            shutil.copytree(folder, copy)
            (copy / path.relative_to(folder)).write_bytes(data)
            with Store(copy, system=Quick()) as store:
                latest = store.latest()
                assert latest is not None
                assert latest.step == 5
                store.verify()
            shutil.rmtree(copy)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ([0, 10**15, "float32", [1], "0" * 32], "of a pack that holds"),
        ([0, 0, "float32", [1], "0" * 32], "of a pack that holds"),
        ([7, 256, "float32", [1], "0" * 32], "pack 7 of 2"),
        ([0, 256, "float99", [1], "0" * 32], "unknown dtype 'float99'"),
        ([0, 256, "float32", [-1], "0" * 32], "int` >= 0"),
        ([0, 256, "float32", [2**40, 2**40], "0" * 32], "of a pack that holds"),
        ([0, 256, "float32", [1], "0" * 31], "matching regex"),
        ([0, 256, "float32", [1]], "at least length 5"),
        ("eval", "Expected `array`"),
    ],
)
def test_a_forged_entry_is_refused(folder: Path, entry: object, expected: str) -> None:
    """An entry outside its pack, of an unknown dtype or another form is refused before anything is mapped."""
    forge(folder, tensors={"w": entry})
    with Store(folder, system=Quick()) as store, pytest.raises(CheckpointCorruptError, match=expected):
        store.open(sequence=4)


def test_a_field_that_is_unknown_is_refused(folder: Path) -> None:
    """A manifest is decoded strictly."""
    forge(folder, extra=1)
    with Store(folder, system=Quick()) as store, pytest.raises(CheckpointCorruptError, match="unknown field `extra`"):
        store.open(sequence=4)


def test_a_newer_format_is_neither_read_nor_set_aside(folder: Path) -> None:
    """A whole manifest of a later format is an error that says so; nothing is fallen back from, nothing removed."""
    path = forge(folder, format=2)
    before = files_of(folder)
    with Store(folder, system=Quick()) as store:
        with pytest.raises(
            StoreVersionError, match=r"000000004\.json is in format 2, and this bitproof reads format 1"
        ):
            store.latest()
        assert store.gc().files == 0
    assert path.exists()
    assert files_of(folder) == before


def test_any_reader_of_safetensors_opens_a_pack(folder: Path) -> None:
    """A pack is an ordinary safetensors file under the tensors' names."""
    with Store(folder, system=Quick()) as store:
        pack = store.checkpoints()[0].packs[0].name
    with safe_open(folder / "objects" / pack[:2] / f"{pack}.safetensors", "pt") as file:
        assert set(file.keys()) == {"w", "shared", "__document__"}
        assert same_bits(file.get_tensor("w"), state(2)["w"])


def test_what_is_stored_is_pinned(tmp_path: Path) -> None:
    """Golden values: the manifest's form and the pack's bytes change only together with the format's number."""
    tensors = {"b": torch.arange(3, dtype=torch.uint8), "a/w": torch.tensor([[1.5, -0.0]]), "n": torch.tensor(7)}
    with Store(tmp_path / "s", system=Quick()) as store:
        commit = store.save(b'{"x": 1}', tensors, step=12, facts={"loss": 0.25})
    manifest = json.loads((tmp_path / "s" / "checkpoints" / "000000001.json").read_bytes())["checkpoint"]
    manifest["saved_at"] = ""
    assert manifest == GOLDEN
    pack = tmp_path / "s" / "objects" / commit.packs[0].name[:2] / f"{commit.packs[0].name}.safetensors"
    assert pack.read_bytes() == GOLDEN_PACK


GOLDEN_PACK = b'8\x01\x00\x00\x00\x00\x00\x00{"__metadata__":{"format":"pt"},"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"a/w":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]},"b":{"dtype":"U8","shape":[3],"data_offsets":[16,19]},"__document__":{"dtype":"U8","shape":[8],"data_offsets":[19,27]}}                                                   \x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\xc0?\x00\x00\x00\x80\x00\x01\x02{"x": 1}'
GOLDEN: dict[str, object] = {
    "format": 1,
    "sequence": 1,
    "step": 12,
    "saved_at": "",
    "facts": {"loss": 0.25},
    "size": 27,
    "written": 27,
    "packs": [
        {"name": "9a7eda9105f9bf71fc4a7e059e933b4f", "size": 347, "header": [320, "07c1dab75d44258401e1717764c54291"]}
    ],
    "document": [0, 339, "uint8", [8], "f5c7aba214556d56ad0df2695ef92ad9"],
    "tensors": {
        "b": [0, 336, "uint8", [3], "e3b55f57945a17cf5f4299fc161c9cbb"],
        "a/w": [0, 328, "float32", [1, 2], "fbf2b897afd9fb9b7166c2ee7c7ace62"],
        "n": [0, 320, "int64", [], "deb6d224c549cbd3e8c0d782b2f61276"],
    },
}
