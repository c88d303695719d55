"""State trees as a JSON document and named tensors, and back, without pickle.

A tree is made of dicts, lists, tuples, sets, deques, plain scalars, text, bytes, tensors, NumPy arrays and scalars,
generators, and torch's sizes, dtypes and devices. Its tensors go out under readable names, for safetensors; the rest
is a strict and versioned JSON document. Reading one makes plain data only, whatever the document says.

Three things survive that a copy usually loses: every bit (NaN payloads, −0.0, dtypes), objects that occur more than
once (tied weights, a shared list), and memory that several tensors see (views). Of a view alone, only its own
elements are stored.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from bitproof.state import nodes
from bitproof.state.errors import StateCorruptError, StateError
from bitproof.state.reading import Reader
from bitproof.state.survey import MAX_DEPTH, Survey
from bitproof.state.writing import Writer

__all__ = ["MAX_DEPTH", "Encoded", "decode", "encode", "snapshot"]


class Encoded(NamedTuple):
    """A tree in its stored form."""

    document: bytes
    """Strict JSON."""
    tensors: dict[str, torch.Tensor]
    """Row-major tensors by name, of the dtypes that safetensors stores. They may share memory with the tree."""


def encode(tree: Any) -> Encoded:
    """Write a tree as a document and named tensors.

    ``OrderedDict`` and ``defaultdict`` come back as plain dicts. Equal trees give equal documents.

    Args:
        tree: plain data of any depth up to :data:`MAX_DEPTH`; tensors of any dtype and shape on any device.

    Returns:
        The document, and its tensors. A tensor that is row-major already is not copied: copy it before training goes
        on.

    Raises:
        UnsupportedStateError: something in the tree has no stored form; the message has its path and its type.

    Example:
        >>> document, tensors = encode({"model": {"weight": torch.ones(2)}, "step": 7})
        >>> list(tensors)
        ['model/weight']
        >>> decode(document, tensors)["step"]
        7
    """
    survey = Survey()
    survey.visit(tree)
    writer = Writer(survey)
    return Encoded(nodes.write(writer.node(tree)), writer.tensors)


def decode(document: bytes, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Read what :func:`encode` wrote.

    Args:
        document: the JSON document.
        tensors: the named tensors; each is asked for when it is needed, so a lazy mapping will do.

    Returns:
        The tree. Its tensors share memory with ``tensors`` where the layout allows, and are on the same devices.

    Raises:
        StateVersionError: another version of the format wrote the document.
        StateCorruptError: the document is damaged, or does not fit the tensors.
    """
    reader = Reader(tensors)
    try:
        return reader.value(nodes.read(document))
    except StateError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError, KeyError, RecursionError) as error:
        # NumPy, torch and random check what they are given; what they refuse was not written by encode().
        msg = f"the state document cannot be read: {type(error).__name__}: {error}"
        raise StateCorruptError(msg) from error


def snapshot(tree: Any) -> Any:
    """Copy a tree such that nothing done to the original can change the copy; sharing inside it survives."""
    document, tensors = encode(tree)
    return decode(document, {name: tensor.clone() for name, tensor in tensors.items()})
