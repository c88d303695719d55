"""Which tensors and arrays of a tree share memory, and how to store each byte once.

Sharing is decided by addresses, so that it holds across tensors, views, and NumPy arrays over the same memory. Two
views whose address ranges interleave without a common element (two columns of a matrix) do not share.
"""

import ctypes
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

ALIGNMENT = 16  # the widest element, complex128


class View(NamedTuple):
    """Elements somewhere in memory. Views sort by address."""

    space: str
    """The device whose addresses these are."""
    first: int
    """The lowest address of any byte."""
    end: int
    """The address after the last byte."""
    start: int
    """The address of the first element."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""
    width: int
    """Bytes of an element."""

    @property
    def dense(self) -> bool:
        """Whether the elements fill their address range, each once."""
        return self.end - self.first == self.width * _count(self.shape) and not self.overlaps_itself

    @property
    def overlaps_itself(self) -> bool:
        """Whether two elements may have the same address (an expanded tensor)."""
        reach = 0
        for stride, n in sorted((abs(s), n) for n, s in zip(self.shape, self.strides, strict=True) if n > 1):
            if stride < reach + self.width:
                return True
            reach += stride * (n - 1)
        return False

    @property
    def row_major(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        expected = self.width
        for n, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n > 1 and stride != expected:
                return False
            expected *= n
        return True


def view(space: str, start: int, shape: tuple[int, ...], strides: tuple[int, ...], width: int) -> View:
    """Describe elements by where the first lies and their strides in bytes."""
    reach = [(n - 1) * stride for n, stride in zip(shape, strides, strict=True)]
    first = start + sum(r for r in reach if r < 0)
    end = start + sum(r for r in reach if r > 0) + width
    return View(space, first, end, start, shape, strides, width)


def view_of_tensor(tensor: torch.Tensor) -> View:
    """Describe where a strided tensor's elements lie."""
    width, start = tensor.element_size(), tensor.data_ptr()
    space = "cpu" if tensor.is_cpu else str(tensor.device)
    strides = tuple([stride * width for stride in tensor.stride()])
    if tensor.is_contiguous():  # by far the most
        return View(space, start, start + tensor.nbytes, start, tuple(tensor.shape), strides, width)
    return view(space, start, tuple(tensor.shape), strides, width)


def view_of_array(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> View:
    """Describe where a NumPy array's elements lie."""
    return view("cpu", array.__array_interface__["data"][0], array.shape, array.strides, array.itemsize)


def sharing(views: Iterable[View]) -> list[list[View]]:
    """Group different views that have bytes in common.

    Args:
        views: of non-empty tensors and arrays; equal ones count once.

    Returns:
        The groups of two or more, each sorted by address.
    """
    ordered = sorted(set(views))
    groups: list[list[View]] = []
    cluster: list[View] = []
    end = 0
    for view in ordered:
        if cluster and view.space == cluster[0].space and view.first < end:
            cluster.append(view)
            end = max(end, view.end)
            continue
        groups += _split(cluster)
        cluster, end = [view], view.end
    return groups + _split(cluster)


def _split(cluster: list[View]) -> list[list[View]]:
    if len(cluster) < 2:
        return []
    if all(view.dense for view in cluster):
        return [cluster]
    # Ranges overlap, but elements may not: find those that do, by the places of all.
    places = [_places(view) for view in cluster]
    owners = np.repeat(np.arange(len(cluster)), [len(p) for p in places])
    flat = np.concatenate(places)
    order = np.argsort(flat, kind="stable")
    flat, owners = flat[order], owners[order]
    same = np.flatnonzero(flat[1:] == flat[:-1])
    parent = list(range(len(cluster)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for a, b in np.unique(np.stack([owners[same], owners[same + 1]], 1), axis=0).tolist():
        parent[root(a)] = root(b)
    members: dict[int, list[View]] = {}
    for i, view in enumerate(cluster):
        members.setdefault(root(i), []).append(view)
    return [group for group in members.values() if len(group) > 1]


def _places(view: View) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the address of every byte of a view, each once."""
    places = np.asarray([view.start], dtype=np.int64)
    for n, stride in [*zip(view.shape, view.strides, strict=True), (view.width, 1)]:
        places = (places[:, None] + np.arange(n, dtype=np.int64) * stride).reshape(-1)
    return np.unique(places)


def base_address(group: Sequence[View], storage: torch.UntypedStorage | None) -> int:
    """Return where a group's common bytes start, such that every member stays aligned to its element."""
    first = min(view.first for view in group)
    origin = storage.data_ptr() if storage is not None else 0
    return origin + (first - origin) // ALIGNMENT * ALIGNMENT


def base_bytes(group: Sequence[View], storage: torch.UntypedStorage | None) -> torch.Tensor:
    """Return a flat uint8 tensor with the bytes from :func:`base_address` to the end of a group.

    It shares memory with the storage if all members lie in that one; else it is a copy.
    """
    start, first = base_address(group, storage), min(view.first for view in group)
    end = max(view.end for view in group)
    if storage is not None:
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return whole[start - storage.data_ptr() : end - storage.data_ptr()]
    # The members' ranges overlap, so every byte between the first and the last belongs to one of them.
    data = bytes(first - start) + ctypes.string_at(first, end - first)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def row_major_strides(shape: Sequence[int], width: int = 1) -> tuple[int, ...]:
    """Return the strides of a row-major tensor, as torch gives them."""
    strides = [width]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides))[: len(shape)] if shape else ()


def _count(shape: Sequence[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total
