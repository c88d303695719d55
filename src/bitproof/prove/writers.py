"""Watch files being written, with a way to leave one half written: one adapter a writer.

Covered: ``torch.save`` to a path, safetensors (which, from 0.8, writes a temporary file and renames it itself),
bitproof's own store, and Python's ``open`` for writing, through which ``numpy.save``, ``json.dump``, pickle and ``torch.save`` to a file object go.
"""

import builtins
import io
import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch

from bitproof.prove.orders import Writer
from bitproof.trail.probes.patching import all_of, when_imported, wrap


class Watching(Protocol):
    """Is told of every file below the folders."""

    @property
    def tear(self) -> int | None:
        """Leave the file with this number (from 1) half written; None to only note them."""

    @property
    def watches_reads(self) -> bool:
        """Whether to note reading too."""

    def written(self, path: Path, writer: Writer) -> None:
        """A file is about to be written."""

    def read(self, path: Path) -> None:
        """A file is about to be read."""

    def torn(self, path: Path) -> None:
        """The file is half written; this is not to return."""


def watch_files(folders: list[Path], told: Watching) -> None:
    """Watch every file that this process writes below the folders, for the rest of its life."""
    watch = _Watch([folder.resolve() for folder in folders], told)
    wrap(torch, "save", watch.torch_save)
    wrap(torch.serialization, "save", watch.torch_save)
    when_imported("safetensors.torch", lambda module: wrap(module, "serialize_file", watch.serialize_file))
    when_imported("safetensors.numpy", lambda module: wrap(module, "serialize_file", watch.serialize_file))
    when_imported(
        "bitproof.store.system",
        lambda module: all_of(
            [wrap(module.System, "open", watch.store_open), wrap(module.System, "write", watch.store_write)]
        ),
    )
    wrap(io, "open", watch.open)
    wrap(builtins, "open", watch.open)


class _Watch:
    def __init__(self, folders: list[Path], told: Watching) -> None:
        self._folders = folders
        self._told = told
        self._count = 0
        self._store_files: dict[int, Path] = {}
        """By descriptor: the one to tear."""

    def _below(self, path: Any) -> Path | None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        whole = Path(os.path.realpath(os.fsdecode(path)))
        return whole if any(folder in whole.parents for folder in self._folders) else None

    def _to_be_torn(self, path: Any, writer: Writer) -> Path | None:
        """Count a file; return its path if it is the one to tear."""
        whole = self._below(path)
        if whole is None:
            return None
        self._count += 1
        self._told.written(whole, writer)
        return whole if self._count == self._told.tear else None

    def torch_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            path = self._to_be_torn(f, "torch.save")
            result = original(obj, f, *args, **kwargs)
            if path is not None:
                _halve(path)
                self._told.torn(path)
            return result

        return save

    def serialize_file(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            path = self._to_be_torn(filename, "safetensors")
            if path is None:
                return original(tensors, filename, *args, **kwargs)
            place = path.with_name(f".tmp{path.name}") if renames_itself() else path
            original(tensors, str(place), *args, **kwargs)
            _halve(place)
            self._told.torn(place)
            return None

        return serialize_file

    def store_open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def open_(system: Any, path: Path, flags: int) -> Any:
            # A file that is to be written is begun anew; the lock is only held.
            torn = self._to_be_torn(path, "bitproof.Run") if flags & os.O_TRUNC else None
            descriptor = original(system, path, flags)
            if torn is not None:
                self._store_files[descriptor] = torn
            return descriptor

        return open_

    def store_write(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def write(system: Any, descriptor: int, data: memoryview) -> Any:
            path = self._store_files.get(descriptor)
            if path is None:
                return original(system, descriptor, data)
            original(system, descriptor, data[: len(data) // 2])
            self._told.torn(path)
            return None

        return write

    def open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def open_(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: str | None = None,
            errors: str | None = None,
            newline: str | None = None,
            **kwargs: Any,
        ) -> Any:
            writes = any(letter in mode for letter in "wax+")
            path = self._to_be_torn(file, "open") if writes else None
            if not writes and self._told.watches_reads and (read := self._below(file)) is not None:
                self._told.read(read)
            if path is None:
                return original(file, mode, buffering, encoding, errors, newline, **kwargs)
            raw = _Torn(path, mode.replace("b", "").replace("t", ""), self._told.torn)
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

        return open_


class _Torn(io.FileIO):
    """A file whose first write reaches the disk only by half."""

    def __init__(self, path: Path, mode: str, torn: Callable[[Path], None]) -> None:
        super().__init__(path, mode)
        self._path = path
        self._report = torn

    def write(self, data: Any) -> int:
        whole = memoryview(data).cast("B")
        super().write(whole[: len(whole) // 2])
        self._report(self._path)
        return len(whole)

    def close(self) -> None:
        """Report a file that was opened and never written to: it is empty, or as it was."""
        if not self.closed:
            self._report(self._path)
        super().close()


def renames_itself() -> bool:
    """Tell whether the installed safetensors writes a temporary file and renames it."""
    return tuple(int(part) for part in version("safetensors").split(".")[:2]) >= (0, 8)


def _halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)
