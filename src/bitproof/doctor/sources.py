"""The user's Python files, read and never run: the lines at which something is made, drawn or put in order."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_FIXING = frozenset({"sorted", "set", "frozenset", "len", "sum", "min", "max", "any", "all"})
"""Functions whose result does not depend on the order of what they are given."""
_ORDERING = frozenset({"list", "tuple", "enumerate", "iter", "zip", "map", "filter", "reversed"})
"""Functions whose result does."""
_KEEPING = frozenset({"append", "extend", "insert", "write", "writelines", "put", "appendleft"})
"""Methods through which a loop's order stays."""
_STRINGS_METHODS = frozenset({"split", "rsplit", "splitlines", "readlines"})
_STRING_METHODS = frozenset(
    {"read", "read_text", "lower", "upper", "strip", "lstrip", "rstrip", "replace", "join", "format", "decode", "removeprefix",
     "removesuffix", "title", "casefold", "as_posix"}
)  # fmt: skip
_STRING_ATTRIBUTES = frozenset({"name", "stem", "suffix"})
_PATHS = frozenset({"listdir", "glob", "rglob", "iglob", "iterdir"})
_COMPREHENSIONS = (ast.ListComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Source:
    """One file.

    Args:
        path: of the file.
        text: its content.
    """

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The file as a tree; empty if this Python cannot read it."""
        try:
            return ast.parse(self.text)
        except SyntaxError:
            return ast.Module(body=[], type_ignores=[])

    def at(self, node: ast.expr | ast.stmt) -> str:
        """Return ``file:line`` of a node."""
        return f"{self.path}:{node.lineno}"

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls whose dotted name is one of these, or ends in one of them after a dot."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                name = dotted(node.func)
                if any(name == wanted or name.endswith(f".{wanted}") for wanted in names):
                    yield node

    def calls_below(self, module: str) -> Iterator[tuple[str, ast.Call]]:
        """Yield the calls of a module's own functions: ``random`` gives ``("shuffle", …)`` for ``random.shuffle(…)``."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                before, _, name = dotted(node.func).rpartition(".")
                if before == module or (module == "np.random" and before == "numpy.random"):
                    yield name, node

    def assignments_to(self, ending: str) -> Iterator[ast.Assign]:
        """Yield the assignments to an attribute whose dotted name ends like this."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and any(f".{dotted(t)}".endswith(f".{ending}") for t in node.targets):
                yield node

    @cached_property
    def rebuilds_schedule(self) -> bool:
        """Whether the script brings a schedule to its place by itself: ``last_epoch``, or steps that are taken again."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                if any(keyword.arg == "last_epoch" for keyword in node.keywords):
                    return True
                name = dotted(node.func)
                if name.endswith("scheduler.step") and any(_names_epoch(argument) for argument in node.args):
                    return True
            if isinstance(node, ast.Assign) and any(dotted(t).endswith(".last_epoch") for t in node.targets):
                return True
            if isinstance(node, ast.For) and len(node.body) == 1 and _is_scheduler_step(node.body[0]):
                return True
        return False

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        return {child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)}

    @cached_property
    def _assigned(self) -> dict[str, list[ast.expr]]:
        found: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self.tree):
            targets: Sequence[ast.expr] = ()
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
                targets = [node.target]
            value = getattr(node, "value", None)
            for target in targets:
                if isinstance(target, ast.Name) and value is not None:
                    found.setdefault(target.id, []).append(value)
        return found

    def orders_from_sets(self) -> Iterator[ast.expr]:
        """Yield the sets of strings in this file whose order is used.

        A set of numbers has the same order in every process, so only one whose elements can be seen to be strings (or
        paths) counts; and only where its order stays: made into a list, counted through, looped over to build something.
        """
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr) and self._is_set_of_strings(node) and self._is_ordered(node):
                yield node

    def _is_ordered(self, node: ast.expr) -> bool:
        parent = self._parents.get(node)
        if isinstance(parent, ast.Starred):
            parent = self._parents.get(parent)
            return isinstance(parent, (ast.List, ast.Tuple))
        if isinstance(parent, ast.comprehension):
            made = self._parents[parent]
            return isinstance(made, _COMPREHENSIONS) and not self._order_is_fixed(made)
        if isinstance(parent, (ast.For, ast.AsyncFor)):
            return parent.iter is node and _keeps_order(parent)
        if isinstance(parent, ast.Call) and node in parent.args:
            name = dotted(parent.func)
            return (name in _ORDERING or name.endswith(".join")) and not self._order_is_fixed(parent)
        return False

    def _order_is_fixed(self, node: ast.expr) -> bool:
        """Tell whether what is made in a set's order is put in another one at once, or only counted."""
        parent = self._parents.get(node)
        if isinstance(parent, ast.Call) and node in parent.args:
            name = dotted(parent.func)
            return name in _FIXING or (name in _ORDERING and self._order_is_fixed(parent))
        if isinstance(parent, ast.Compare):
            return any(isinstance(operator, (ast.In, ast.NotIn)) for operator in parent.ops)
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Name):
            return self._is_sorted_later(parent.targets[0].id)
        return isinstance(parent, ast.comprehension) and isinstance(self._parents[parent], ast.SetComp)

    def _is_sorted_later(self, name: str) -> bool:
        return any(dotted(call.func) == f"{name}.sort" for call in self.calls("sort"))

    def _is_set_of_strings(self, node: ast.expr, depth: int = 0) -> bool:
        if isinstance(node, ast.Set):
            return any(self._is_string(element, depth) for element in node.elts)
        if isinstance(node, ast.SetComp):
            return self._is_string(node.elt, depth) or self._is_loop_string(node.elt, node, depth)
        if isinstance(node, ast.Call) and dotted(node.func) in {"set", "frozenset"} and len(node.args) == 1:
            return self._gives_strings(node.args[0], depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)):
            return self._is_set_of_strings(node.left, depth)
        if isinstance(node, ast.Name):
            return self._every_value(node, self._is_set_of_strings, depth)
        return False

    def _gives_strings(self, node: ast.expr, depth: int) -> bool:
        """Tell whether iterating over an expression gives strings."""
        if self._is_string(node, depth):
            return True
        if isinstance(node, (ast.List, ast.Tuple)):
            return any(self._is_string(element, depth) for element in node.elts)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            return self._is_string(node.elt, depth) or self._is_loop_string(node.elt, node, depth)
        if isinstance(node, ast.Call):
            name = dotted(node.func).rpartition(".")[2]
            if name in _STRINGS_METHODS | _PATHS:
                return True
            return (
                name in _ORDERING | {"sorted", "set"}
                and len(node.args) == 1
                and self._gives_strings(node.args[0], depth)
            )
        if isinstance(node, ast.Name):
            return self._every_value(node, self._gives_strings, depth) or self._is_set_of_strings(node, depth)
        return False

    def _is_loop_string(self, element: ast.expr, comprehension: ast.expr, depth: int) -> bool:
        """Tell whether a comprehension's element is its own variable, which takes on strings."""
        loops: list[ast.comprehension] = getattr(comprehension, "generators", [])
        return isinstance(element, ast.Name) and any(
            isinstance(loop.target, ast.Name) and loop.target.id == element.id and self._gives_strings(loop.iter, depth)
            for loop in loops
        )

    def _is_string(self, node: ast.expr, depth: int) -> bool:
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str)
        if isinstance(node, ast.JoinedStr):
            return True
        if isinstance(node, ast.Attribute):
            return node.attr in _STRING_ATTRIBUTES
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            return name in {"str", "repr", "input"} or name.rpartition(".")[2] in _STRING_METHODS
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod, ast.Mult)):
            return self._is_string(node.left, depth)
        if isinstance(node, ast.Name):
            return self._every_value(node, self._is_string, depth)
        return False

    def _every_value(self, name: ast.Name, test: object, depth: int) -> bool:
        """Apply a test to all values that a name is given in this file; no value is no proof."""
        values = self._assigned.get(name.id, [])
        return depth < 5 and bool(values) and all(test(value, depth + 1) for value in values)  # type: ignore[operator]


def read(paths: Sequence[str]) -> tuple[Source, ...]:
    """Read files, passing over those that are gone or no text."""
    found = []
    for path in paths:
        try:
            found.append(Source(Path(path), Path(path).read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError):
            continue
    return tuple(found)


def dotted(node: ast.expr) -> str:
    """Return such as ``np.random.rand`` for a name with attributes; a call or anything else before a dot is left out."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else f".{node.attr}"
    return ""


def _names_epoch(node: ast.expr) -> bool:
    """Tell whether an argument is a count, as ``scheduler.step(epoch)`` took it once, and not a validation loss."""
    return isinstance(node, ast.Name) and node.id in {"epoch", "step", "done", "start", "iteration"}


def _is_scheduler_step(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and dotted(statement.value.func).endswith(".step")
        and "sched" in dotted(statement.value.func)
    )


def _keeps_order(loop: ast.For | ast.AsyncFor) -> bool:
    """Tell whether a loop's body builds something in the order of its turns."""
    for node in (inner for statement in loop.body for inner in ast.walk(statement)):
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in _KEEPING:
            return True
    return False
