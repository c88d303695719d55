"""The rules that every store keeps: a base class of tests, and a state machine against a model in memory.

A test file makes the rules its own by a subclass::

    class TestMyStore(StoreRules):
        def make(self, path):
            return MyStore(path)


    TestMyStoreMachine = machine_of(MyStore).TestCase

It needs pytest and hypothesis: ``pip install 'bitproof[test]'``.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bitproof.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    StoreLockedError,
    StoreNotFoundError,
    UsageError,
)
from bitproof.store import Keep, Store
from bitproof.store.dtypes import DTYPES


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two host tensors have the same dtype, shape and bits (NaN payloads and signs of zero too)."""
    return left.dtype == right.dtype and left.shape == right.shape and bits(left) == bits(right)


def bits(tensor: torch.Tensor) -> bytes:
    """Return the row-major bytes of a host tensor."""
    if tensor.numel() == 0:
        return b""
    flat = tensor.detach().contiguous().resolve_conj().resolve_neg().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy())


def files_of(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, by its relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file in place."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


class StoreRules:
    """Rules for a store on a local disk; a subclass may give another :meth:`make`."""

    def make(self, path: Path) -> Store:
        """Return a store in a folder."""
        return Store(path)

    def test_gives_back_every_dtype(self, tmp_path: Path) -> None:
        """Every dtype, also 0-dimensional, empty, strided, conjugated and NaN ones, comes back bit for bit."""
        raw = torch.randint(0, 256, (48,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        tensors = {name: raw.clone().view(dtype) if name != "bool" else raw > 99 for name, dtype in DTYPES.items()}
        tensors |= {
            "scalar": torch.tensor(-0.0),
            "empty": torch.empty(3, 0, 2),
            "strided": torch.arange(60.0).reshape(5, 12)[::2, 3:].T,
            "expanded": torch.ones(1, 3).expand(4, 3),
            "conjugate": torch.tensor([1 + 2j]).conj(),
            "a/../../b": torch.ones(1),
            "": torch.zeros(2),
        }
        with self.make(tmp_path / "s") as store:
            store.save(b'{"x": 1}', tensors, step=3, facts={"loss": 0.5, "tags": ["a"]})
        with self.make(tmp_path / "s") as store:
            found = store.latest()
            assert found is not None
            assert list(found.tensors) == list(tensors)
            wrong = [name for name in tensors if not same_bits(found.tensors[name], tensors[name])]
            assert wrong == []
            assert (found.step, found.document, dict(found.facts)) == (3, b'{"x": 1}', {"loss": 0.5, "tags": ["a"]})

    def test_an_empty_store_has_no_latest(self, tmp_path: Path) -> None:
        """A store without checkpoints says None, not an error."""
        with self.make(tmp_path / "s") as store:
            assert store.latest() is None
            assert store.checkpoints() == []
            assert store.verify() == []

    def test_an_absent_store_is_named(self, tmp_path: Path) -> None:
        """Asking for an existing store where there is none is an error that names the folder."""
        with pytest.raises(StoreNotFoundError, match=str(tmp_path)):
            Store(tmp_path / "s", create=False)

    def test_unchanged_tensors_are_not_written_again(self, tmp_path: Path) -> None:
        """With 90 % of the tensors unchanged, a second save writes at most 11 % of the bytes on disk."""
        tensors = {f"{i}": torch.full((5_000,), float(i)) for i in range(100)}
        with self.make(tmp_path / "s") as store:
            store.save(b"{}", tensors, step=1)
            before = sum(map(len, files_of(tmp_path / "s" / "objects").values()))
            for i in range(10):
                tensors[f"{i * 7}"].add_(0.5)
            store.save(b"{}", tensors, step=2)
            after = sum(map(len, files_of(tmp_path / "s" / "objects").values()))
            assert after - before <= 0.11 * before
            for commit in store.checkpoints():
                store.open(sequence=commit.sequence).verify()

    def test_shared_packs_hold_at_most_twice_the_bytes(self, tmp_path: Path) -> None:
        """However tensors change, what a store keeps is bounded by the checkpoints that it keeps."""
        tensors = {f"{i}": torch.full((20_000,), float(i)) for i in range(20)}
        total = 20 * 80_000
        with self.make(tmp_path / "s") as store:
            for step in range(1, 40):
                tensors[f"{step % 20}"].add_(0.5)
                store.save(b"{}", tensors, step=step, keep=Keep(last=1))
                size = sum(map(len, files_of(tmp_path / "s" / "objects").values()))
                assert size <= 2.2 * total, step

    def test_a_view_is_as_large_as_its_elements(self, tmp_path: Path) -> None:
        """A view of 1,000 elements of a million takes the room of 1,000."""
        with self.make(tmp_path / "s") as store:
            commit = store.save(b"{}", {"view": torch.zeros(1_000_000)[5:1005]}, step=1)
        assert commit.size == 4_002
        assert sum(map(len, files_of(tmp_path / "s").values())) < 6_000

    def test_keeps_the_last_and_the_best(self, tmp_path: Path) -> None:
        """The newest and the best are kept, also when the best is old, equal, NaN or was never measured."""
        losses = [0.9, None, 0.1, float("nan"), 0.5, 0.1, 0.7, float("inf"), 0.4]
        with self.make(tmp_path / "s") as store:
            kept = []
            for step, loss in enumerate(losses, 1):
                facts = {} if loss is None else {"val_loss": loss}
                store.save(
                    b"%d" % step, {"w": torch.full((9,), step)}, step=step, facts=facts, keep=Keep(1, best="val_loss")
                )
                kept.append([commit.step for commit in store.checkpoints()])
            assert kept == [[1], [1, 2], [3], [3, 4], [3, 5], [6], [6, 7], [6, 8], [6, 9]]
            assert len(files_of(tmp_path / "s" / "objects")) == 2
            assert store.verify() == []

    def test_the_newest_of_a_step_is_opened(self, tmp_path: Path) -> None:
        """A step that was saved again after a resume has two checkpoints; its name means the newer one."""
        with self.make(tmp_path / "s") as store:
            for step, value in ((10, 1.0), (20, 2.0), (20, 3.0)):
                store.save(b"{}", {"w": torch.tensor(value)}, step=step)
            assert store.open(20).tensors["w"] == 3.0
            assert store.open(sequence=2).tensors["w"] == 2.0
            with pytest.raises(
                CheckpointNotFoundError, match=r"no checkpoint of step 15; the last steps it has: 10, 20"
            ):
                store.open(15)
            with pytest.raises(CheckpointNotFoundError, match="sequence number 9"):
                store.open(sequence=9)

    def test_numbers_are_never_used_twice(self, tmp_path: Path) -> None:
        """The number of a checkpoint that was set aside is not given to another one."""
        with self.make(tmp_path / "s") as store:
            for step in (1, 2):
                store.save(b"{}", {"w": torch.tensor(step)}, step=step)
            flip(tmp_path / "s" / "checkpoints" / "000000002.json", 300)
            latest = store.latest()
            assert latest is not None
            assert latest.step == 1
            assert store.save(b"{}", {"w": torch.tensor(2)}, step=2).sequence == 3

    def test_a_reader_survives_pruning(self, tmp_path: Path) -> None:
        """A checkpoint that is open stays readable when newer ones replace it and its files are gone."""
        with self.make(tmp_path / "s") as store:
            store.save(b"old", {"w": torch.arange(1000.0)}, step=1)
            reader = self.make(tmp_path / "s").open(1)
            store.save(b"new", {"w": torch.ones(1000)}, step=2, keep=Keep(1))
            assert len(files_of(tmp_path / "s" / "objects")) == 1
            assert reader.document == b"old"
            assert same_bits(reader.tensors["w"], torch.arange(1000.0))

    def test_writing_into_what_was_read_leaves_the_file(self, tmp_path: Path) -> None:
        """A tensor that was read is a private copy on write: the file never changes."""
        with self.make(tmp_path / "s") as store:
            store.save(b"{}", {"w": torch.ones(1000)}, step=1)
            store.open(1).tensors["w"].zero_()
            assert store.open(1).tensors["w"].sum() == 1000
            assert store.verify() == []

    def test_a_second_writer_is_told_who_the_first_is(self, tmp_path: Path) -> None:
        """Two stores on one folder: the second cannot write, and is told the process; it can read."""
        with self.make(tmp_path / "s") as first:
            first.save(b"{}", {"w": torch.ones(1)}, step=1)
            second = self.make(tmp_path / "s")
            with pytest.raises(StoreLockedError, match=r"is being written by process \d+ on \S+ since 20"):
                second.save(b"{}", {"w": torch.ones(1)}, step=2)
            assert second.latest() is not None
            first.save(b"{}", {"w": torch.zeros(1)}, step=2)
        assert second.save(b"{}", {"w": torch.ones(1)}, step=3).sequence == 3
        second.close()

    def test_loads_into_tensors_or_changes_none(self, tmp_path: Path) -> None:
        """Loading fits exactly or changes nothing, and says what differs."""
        with self.make(tmp_path / "s") as store:
            store.save(b"{}", {"a": torch.ones(3), "b": torch.ones(2, dtype=torch.int64)}, step=1)
            checkpoint = store.latest()
            assert checkpoint is not None
            targets: dict[str, torch.Tensor] = {"a": torch.zeros(3), "b": torch.zeros(2), "c": torch.zeros(1)}
            expected = r"c: not in the checkpoint; b: saved as torch.int64 \[2\], found torch.float32 \[2\]"
            with pytest.raises(CheckpointMismatchError, match=expected):
                checkpoint.load_into(targets)
            assert targets["a"].sum() == 0
            targets = {"a": torch.zeros(3, requires_grad=True), "b": torch.zeros(2, dtype=torch.int64)}
            checkpoint.load_into(targets)
            assert targets["a"].sum() == 3
            assert targets["b"].sum() == 2

    def test_refuses_what_it_cannot_keep(self, tmp_path: Path) -> None:
        """Sparse tensors, names of its own, facts that are no JSON, and negative steps are refused before a write."""
        with self.make(tmp_path / "s") as store:
            sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=False)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="Cannot save 's'"):
                store.save(b"{}", {"s": sparse}, step=1)
            with pytest.raises(UsageError, match="__document__"):
                store.save(b"{}", {"__document__": torch.ones(1)}, step=1)
            with pytest.raises(UsageError, match="facts"):
                store.save(b"{}", {}, step=1, facts={"f": object()})
            with pytest.raises(UsageError, match="step -1"):
                store.save(b"{}", {}, step=-1)
            assert store.checkpoints() == []

    def test_falls_back_and_says_so(self, tmp_path: Path) -> None:
        """The newest checkpoint that is as it was saved is taken; the bad one is set aside and reported."""
        with self.make(tmp_path / "s") as store:
            for step in (1, 2, 3):
                commit = store.save(b"{}", {"w": torch.full((100,), step)}, step=step)
            bad = tmp_path / "s" / "objects" / commit.packs[-1].name[:2] / f"{commit.packs[-1].name}.safetensors"
            flip(bad, 8 * bad.stat().st_size - 100)
            with pytest.raises(CheckpointCorruptError, match="tensor 'w'"):
                _ = store.open(3).tensors["w"]
            latest = store.latest()
            assert latest is not None
            assert latest.step == 2
            assert [problem.path.name for problem in store.problems] == ["000000003.json"]
            assert "set aside" in store.problems[0].what
            assert [path.name for path in (tmp_path / "s" / "quarantine").iterdir()] == ["000000003.json"]

    def test_never_starts_afresh_over_bad_checkpoints(self, tmp_path: Path) -> None:
        """A store of which every checkpoint is damaged is an error, also the second time, never 'empty'."""
        with self.make(tmp_path / "s") as store:
            store.save(b"{}", {"w": torch.ones(1)}, step=1)
            flip(tmp_path / "s" / "checkpoints" / "000000001.json", 99)
            for _ in range(2):
                with pytest.raises(CheckpointCorruptError, match="None of the 1 checkpoints"):
                    store.latest()
            store.gc(quarantine=True)
            assert store.latest() is None

    def test_a_moved_store_works(self, tmp_path: Path) -> None:
        """Nothing in a store is an absolute path: a moved folder is the same store."""
        with self.make(tmp_path / "s") as store:
            store.save(b"{}", {"w": torch.ones(1)}, step=1)
        (tmp_path / "s").rename(tmp_path / "moved")
        with self.make(tmp_path / "moved") as store:
            assert store.latest() is not None
            assert store.verify() == []


@dataclass
class _Saved:
    step: int
    document: bytes
    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any]


class StoreMachine(RuleBasedStateMachine):
    """Random saves, prunings, restarts, crashes and damage, compared with a dictionary after each."""

    make: Callable[[Path], Store] = Store

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="bitproof-store-"))
        self._model: dict[int, _Saved] = {}
        self._used = 0
        self._state = {name: torch.zeros(50) for name in "abc"}

    @initialize()
    def begin(self) -> None:
        """Open the store."""
        self._store = type(self).make(self._folder)

    @rule(
        changed=st.sets(st.sampled_from("abc")),
        value=st.integers(0, 3),
        last=st.none() | st.integers(1, 3),
        loss=st.none() | st.integers(0, 5),
    )
    def save(self, changed: set[str], value: int, last: int | None, loss: int | None) -> None:
        """Change some tensors and save."""
        for name in changed:
            self._state[name].fill_(value)
        facts = {} if loss is None else {"loss": loss}
        document = json.dumps({"used": self._used}).encode()
        keep = Keep(last, best="loss") if last else None
        commit = self._store.save(document, self._state, step=self._used // 2, facts=facts, keep=keep)
        assert commit.sequence == self._used + 1
        self._used += 1
        copies = {name: tensor.clone() for name, tensor in self._state.items()}
        self._model[commit.sequence] = _Saved(commit.step, document, copies, facts)
        if last:
            kept = set(sorted(self._model)[-last:])
            scored = [number for number, saved in self._model.items() if "loss" in saved.facts]
            if scored:
                kept.add(min(scored, key=lambda number: (self._model[number].facts["loss"], -number)))
            self._model = {number: saved for number, saved in self._model.items() if number in kept}

    @rule()
    def restart(self) -> None:
        """Close the store and open it again."""
        self._store.close()
        self._store = type(self).make(self._folder)

    @rule(data=st.binary(max_size=20))
    def crash(self, data: bytes) -> None:
        """Leave half-written files, as a crash does, and sweep them."""
        (self._folder / "objects" / ".tmp-pack").write_bytes(data)
        (self._folder / "checkpoints" / ".tmp-commit").write_bytes(data)
        (self._folder / "objects" / "00").mkdir(exist_ok=True)
        (self._folder / "objects" / "00" / f"{0:032}.safetensors").write_bytes(data)
        assert self._store.gc().files == 3

    @precondition(lambda self: len(self._model) > 1)
    @rule(at=st.integers(0, 100))
    def damage(self, at: int) -> None:
        """Flip a bit of the newest commit; the one before it is taken."""
        newest = max(self._model)
        flip(self._folder / "checkpoints" / f"{newest:09d}.json", at * 8)
        assert any(problem.path.name == f"{newest:09d}.json" for problem in self._store.verify())
        self._store.latest()
        assert f"{newest:09d}.json" in {problem.path.name for problem in self._store.problems}
        del self._model[newest]

    @invariant()
    def agrees(self) -> None:
        """The store and the model hold the same."""
        if not hasattr(self, "_store"):
            return
        assert [commit.sequence for commit in self._store.checkpoints()] == sorted(self._model)
        for number, saved in self._model.items():
            found = self._store.open(sequence=number)
            assert (found.step, found.document, dict(found.facts)) == (saved.step, saved.document, saved.facts)
            assert all(same_bits(found.tensors[name], tensor) for name, tensor in saved.tensors.items())
        latest = self._store.latest() if self._model else None
        assert (latest.commit.sequence if latest else None) == (max(self._model) if self._model else None)
        assert self._store.verify() == []

    def teardown(self) -> None:
        """Remove the folder."""
        self._store.close()
        shutil.rmtree(self._folder)


def machine_of(make: Callable[[Path], Store]) -> type[StoreMachine]:
    """Return the state machine for a kind of store."""
    return type("Machine", (StoreMachine,), {"make": staticmethod(make)})
