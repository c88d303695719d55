"""What a run's checkpoint holds, part by part, told from its document alone: no tensor is read."""

from collections.abc import Iterator
from typing import Any

import msgspec

from bitproof.state import StateCorruptError, nodes

_LOOP = ("place", "step", "micro", "log")
_MANY = (nodes.List, nodes.Tuple, nodes.Set, nodes.FrozenSet, nodes.Deque)
_GENERATORS = (
    nodes.BitGenerator,
    nodes.NumpyGenerator,
    nodes.NumpyRandomState,
    nodes.PythonRandom,
    nodes.TorchGenerator,
)


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a checkpoint."""

    name: str
    kind: str
    """How its state is taken (module, optimizer, scheduler, scaler, stateful, object, value), or: generator, loader
    position, place in the loop."""
    type: str | None = None
    """The class that it was saved from, of what was registered by name."""
    tensors: int = 0
    """Tensors and arrays."""
    values: int = 0
    """Plain values: numbers, text, bytes."""
    generators: int = 0
    """Generators that are kept as such."""

    @property
    def counts(self) -> str:
        """What it is made of, in words."""
        counted = [(self.tensors, "tensor"), (self.values, "plain value"), (self.generators, "generator")]
        return ", ".join(f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in counted if n) or "nothing"


def contents(document: bytes) -> list[Content]:
    """List the parts of a run's checkpoint, generators and loader positions among them.

    Args:
        document: of the checkpoint.

    Returns:
        The parts in the order in which they were saved; none if the document is not one of a `Run`.

    Raises:
        StateVersionError: another version wrote it.
    """
    try:
        root = _items(nodes.read(document))
    except StateCorruptError:  # the store has verified its bytes: it is of another program
        return []
    if "parts" not in root:
        return []
    count = _Counts()
    found = []
    for name, node in _items(root["parts"]).items():
        part = _items(node)
        found.append(count.content(part["state"], name=name, kind=part["kind"], type=part["class"]))
    generators = _items(root["generators"])
    for name, node in [*_items(generators["global"]).items(), *_items(generators["found"]).items()]:
        found.append(count.content(node, name=name, kind="generator"))
    for name, node in _items(root["loaders"]).items():
        loader = _items(node)
        found.append(count.content(loader["position"], name=name, kind="loader position"))
        for path, generator in _items(loader["generators"]).items():
            found.append(count.content(generator, name=f"{name}: {path}", kind="generator"))
    found.append(count.content(nodes.List([root[key] for key in _LOOP]), name="loop", kind="place in the loop"))
    # CUDA's generators are an empty list where it was not used.
    return [one for one in found if one.kind != "generator" or one.counts != "nothing"]


def _items(node: Any) -> dict[str, Any]:
    node = node.value if isinstance(node, nodes.Shared) else node
    return {str(key): value for key, value in node.items} if isinstance(node, nodes.Dict) else {}


class _Counts:
    """Counts leaves; what is shared counts at each of its places."""

    def __init__(self) -> None:
        self._shared: dict[int, list[str]] = {}

    def content(self, node: Any, **said: Any) -> Content:
        leaves = list(self._leaves(node))
        return Content(
            **said,
            tensors=leaves.count("tensors"),
            values=leaves.count("values"),
            generators=leaves.count("generators"),
        )

    def _leaves(self, node: Any) -> Iterator[str]:
        match node:
            case nodes.Shared():
                self._shared[node.id] = list(self._leaves(node.value))
                yield from self._shared[node.id]
            case nodes.Again():
                yield from self._shared.get(node.id, [])
            case nodes.Dict() | nodes.Counter():
                for _, value in node.items:
                    yield from self._leaves(value)
            case _ if isinstance(node, _MANY):
                for item in node.items:
                    yield from self._leaves(item)
            case nodes.Tensor() | nodes.Array():
                yield "tensors"
            case _:
                yield "generators" if isinstance(node, _GENERATORS) else "values"
