"""Checkpoint files: what is written to them and which are read.

``torch.save`` and safetensors write from C++ and Rust, where Python's audit hooks do not reach, so each has its own
wrap here.
"""

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import torch

from bitproof.fingerprint import digest_bytes, digest_text
from bitproof.trail.looking import Entries, Entry, plain_entry
from bitproof.trail.probes.patching import Detach, all_of, when_imported, wrap
from bitproof.trail.recorder import Recorder
from bitproof.trail.records import TensorRow

_MOST_LEAVES = 100_000


def attach(recorder: Recorder) -> Detach:
    """Watch ``torch.save``, ``torch.load`` and safetensors."""

    def make_save(original: Callable[..., Any]) -> Callable[..., Any]:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(obj, f, *args, **kwargs)
            recorder.event(
                "file-saved",
                {"path": path_of(f), "writer": "torch.save"},
                saved_row(recorder, obj),
            )
            return result

        return save

    def make_load(writer: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def load(f: Any, *args: Any, **kwargs: Any) -> Any:
                recorder.event("file-loaded", {"path": path_of(f), "reader": writer})
                return original(f, *args, **kwargs)

            return load

        return make

    def make_serialize(original: Callable[..., Any]) -> Callable[..., Any]:
        def serialize_file(tensors: dict[str, Any], filename: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tensors, filename, *args, **kwargs)
            facts = {"path": path_of(filename), "writer": "safetensors"}
            recorder.event("file-saved", facts, _row(recorder, dict(_serialized(tensors))))
            return result

        return serialize_file

    def watch_safetensors(module: ModuleType) -> Detach:
        return wrap(module, "safe_open", make_load("safetensors"))

    def watch_safetensors_torch(module: ModuleType) -> Detach:
        undo = [
            wrap(module, "serialize_file", make_serialize),
            wrap(module, "safe_open", make_load("safetensors")),
        ]
        return all_of(undo)

    undo = [
        wrap(torch, "save", make_save),
        wrap(torch.serialization, "save", make_save),
        wrap(torch, "load", make_load("torch.load")),
        wrap(torch.serialization, "load", make_load("torch.load")),
        when_imported("safetensors", watch_safetensors),
        when_imported("safetensors.torch", watch_safetensors_torch),
    ]
    return all_of(undo)


def saved_row(recorder: Recorder, tree: Any) -> TensorRow | None:
    """Return a row of the leaves of a tree that is saved."""
    return _row(recorder, dict(_leaves(recorder, tree, "")))


def path_of(f: Any) -> str | None:
    """Return the absolute path of a file or of an open one; None if it has no name."""
    if isinstance(f, (str, os.PathLike)):
        return os.path.abspath(os.fsdecode(f))  # noqa: PTH100  # resolve() would follow links
    name = getattr(f, "name", None)
    return os.path.abspath(name) if isinstance(name, str) else None  # noqa: PTH100  # likewise


def _row(recorder: Recorder, entries: Entries) -> TensorRow | None:
    return recorder.row("saved", entries) if entries else None


def _leaves(recorder: Recorder, tree: Any, name: str, above: tuple[int, ...] = ()) -> Iterator[tuple[str, Entry]]:
    """Yield the leaves of a saved tree with dotted names; objects of unknown classes are passed over."""
    if isinstance(tree, torch.Tensor):
        yield name, recorder.entry(tree)
        return
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(tree, torch.nn.Module):
        # Not its state_dict(), whose hooks are the user's.
        parts = [*tree.named_parameters(), *tree.named_buffers()]
    elif isinstance(tree, dict):
        parts = tree.items()
    elif isinstance(tree, (list, tuple)):
        if len(tree) > _MOST_LEAVES or (tree and all(type(v) is int for v in tree)):
            yield name, ("value", digest_text(repr(tree)), b"")
        else:
            parts = enumerate(tree)
    elif type(tree).__module__ == "numpy" and hasattr(tree, "tobytes") and not tree.dtype.hasobject:
        yield name, (f"{tree.dtype}{list(getattr(tree, 'shape', ()))}", digest_bytes(tree.tobytes()), b"")
    elif isinstance(tree, (str, bytes)):
        yield name, ("text", digest_text(repr(tree)), b"")
    elif tree is None or isinstance(tree, (bool, int, float, complex)):
        yield name, plain_entry(tree)
    if id(tree) not in above:
        for key, value in parts:
            yield from _leaves(recorder, value, f"{name}.{key}" if name else str(key), (*above, id(tree)))


def _serialized(tensors: dict[str, Any]) -> Iterator[tuple[str, Entry]]:
    """Yield what safetensors hands to its writer: specs that point into memory, or (before 0.8) dicts with bytes."""
    for name, spec in tensors.items():
        if isinstance(spec, dict):
            dtype, shape, data = spec["dtype"], spec["shape"], spec["data"]
        else:
            dtype, shape = spec.dtype, spec.shape
            data = (ctypes.c_char * spec.data_len).from_address(spec.data_ptr) if spec.data_len else b""
        yield name, (f"{dtype}{list(shape)}", digest_bytes(data), b"")
