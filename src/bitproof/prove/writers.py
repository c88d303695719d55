"""Watch files being written, with a way to leave one half written: one adapter a writer.

Covered: ``torch.save`` to a path, safetensors (which, from 0.8, writes a temporary file and renames it itself), and
Python's ``open`` for writing, through which ``numpy.save``, ``json.dump``, pickle and ``torch.save`` to a file object go.
"""

import builtins
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bitproof.trail.probes.patching import when_imported, wrap

COVERED = ("torch.save", "safetensors", "open() for writing (numpy.save, json, pickle, …)")


def watch_writers(
    folders: list[Path], tear: int | None, seen: Callable[[Path], None], torn: Callable[[Path], None]
) -> None:
    """Watch every file that this process writes below the folders, for the rest of its life.

    Args:
        folders: where to look.
        tear: leave the file with this number (from 1) half written; None to only count.
        seen: called with each file before it is written.
        torn: called once the file is half written; it is not to return.
    """
    watch = _Watch([folder.resolve() for folder in folders], tear, seen, torn)
    wrap(torch, "save", watch.torch_save)
    wrap(torch.serialization, "save", watch.torch_save)
    when_imported("safetensors.torch", lambda module: wrap(module, "serialize_file", watch.serialize_file))
    wrap(io, "open", watch.open)
    wrap(builtins, "open", watch.open)


class _Watch:
    def __init__(
        self, folders: list[Path], tear: int | None, seen: Callable[[Path], None], torn: Callable[[Path], None]
    ) -> None:
        self._folders = folders
        self._tear = tear
        self._seen = seen
        self._torn = torn
        self._count = 0

    def _to_be_torn(self, path: Any) -> Path | None:
        """Count a file; return its path if it is the one to tear."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        whole = Path(os.path.realpath(os.fsdecode(path)))
        if not any(folder in whole.parents for folder in self._folders):
            return None
        self._count += 1
        self._seen(whole)
        return whole if self._count == self._tear else None

    def torch_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            path = self._to_be_torn(f)
            result = original(obj, f, *args, **kwargs)
            if path is not None:
                _halve(path)
                self._torn(path)
            return result

        return save

    def serialize_file(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            path = self._to_be_torn(filename)
            if path is None:
                return original(tensors, filename, *args, **kwargs)
            place = path.with_name(f".tmp{path.name}") if renames_itself() else path
            original(tensors, str(place), *args, **kwargs)
            _halve(place)
            self._torn(place)
            return None

        return serialize_file

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
            path = self._to_be_torn(file) if any(letter in mode for letter in "wax+") else None
            if path is None:
                return original(file, mode, buffering, encoding, errors, newline, **kwargs)
            raw = _Torn(path, mode.replace("b", "").replace("t", ""), self._torn)
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


def renames_itself() -> bool:
    """Tell whether the installed safetensors writes a temporary file and renames it."""
    import safetensors  # noqa: PLC0415

    return tuple(int(part) for part in safetensors.__version__.split(".")[:2]) >= (0, 8)


def _halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)
