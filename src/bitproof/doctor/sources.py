"""The user's Python files, read and never run: the lines at which something is made, drawn or put in order."""

import ast
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
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
_SHOWING = frozenset({"print", "warn", "debug", "info", "warning", "error", "critical", "exception", "log"})
"""Functions that only tell somebody."""
_TOLD = frozenset({"choices", "help"})
_PASSING_ON = (ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.Starred)
_WRITERS = (
    "pickle.dump",
    "pickle.dumps",
    "joblib.dump",
    "json.dump",
    "np.save",
    "np.savez",
    "numpy.save",
    "numpy.savez",
)
"""Functions that put state into a file whose leaves no trail has."""
_STATES = frozenset({"state_dict", "getstate", "get_state", "get_rng_state", "bit_generator"})
_COUNTS = frozenset({"epoch", "step", "done", "start", "iteration"})
"""Names of how far a run has come."""
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
                if name.endswith(".step") and node.args and _names_count(node.args[0]):
                    return True
                if name.endswith("LambdaLR") and any(_names_count(part) for part in _arguments(node)[1:]):
                    return True
            if isinstance(node, ast.Assign) and any(dotted(t).endswith(".last_epoch") for t in node.targets):
                return True
            if isinstance(node, ast.For) and len(node.body) == 1 and _is_scheduler_step(node.body[0]):
                return True
        return False

    @cached_property
    def skips_batches(self) -> bool:
        """Whether the script fetches again, and passes over, the batches before the place at which it goes on."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.For) and any(_passes_over(node, statement) for statement in node.body[:2]):
                return True
        return any(len(call.args) > 2 and _names_count(call.args[1]) for call in self.calls("islice"))

    def draws_again(self, *names: str) -> bool:
        """Tell whether a loop only calls functions whose names begin like this, to bring a generator to its place."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.For) and len(node.body) == 1 and isinstance(node.body[0], ast.Expr):
                call = node.body[0].value
                if isinstance(call, ast.Call) and dotted(call.func).startswith(names):
                    return True
        return False

    @cached_property
    def writes_state(self) -> bool:
        """Whether the script puts states into a file by other means than ``torch.save``."""
        return any(self._has_state(argument) for call in self.calls(*_WRITERS) for argument in call.args)

    def _has_state(self, node: ast.expr) -> bool:
        values = [node, *(self._assigned.get(node.id, []) if isinstance(node, ast.Name) else [])]
        return any(
            isinstance(part, ast.Attribute) and part.attr in _STATES for value in values for part in ast.walk(value)
        )

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
        if self._is_only_told(node) or (isinstance(node, ast.Set) and len(node.elts) == 1):
            return False
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

    def _is_only_told(self, node: ast.AST) -> bool:
        """Tell whether an order goes into a message, or into the choices of an option, and nowhere else."""
        parent = self._parents.get(node)
        if isinstance(parent, ast.Assert):
            return parent.msg is node
        if isinstance(parent, ast.keyword):
            return parent.arg in _TOLD
        if isinstance(parent, ast.Call):
            name = dotted(parent.func).rpartition(".")[2]
            if name in _SHOWING or isinstance(self._parents.get(parent), ast.Raise):
                return True
            return name in _ORDERING | {"join", "str", "repr"} and self._is_only_told(parent)
        return isinstance(parent, _PASSING_ON) and self._is_only_told(parent)

    def _is_sorted_later(self, name: str) -> bool:
        """Tell whether a list is put in another order afterwards, or is only counted, asked and told."""
        if any(dotted(call.func) == f"{name}.sort" for call in self.calls("sort")):
            return True
        uses = [node for node in ast.walk(self.tree) if isinstance(node, ast.Name) and node.id == name]
        reads = [use for use in uses if isinstance(use.ctx, ast.Load)]
        sorts = [use for use in reads if self._is_given_to(use, {"sorted"}) and self._is_assigned_to(use, name)]
        return bool(sorts) or (bool(reads) and all(self._is_orderless(use) for use in reads))

    def _is_given_to(self, node: ast.expr, names: AbstractSet[str]) -> bool:
        parent = self._parents.get(node)
        return isinstance(parent, ast.Call) and node in parent.args and dotted(parent.func) in names

    def _is_assigned_to(self, node: ast.expr, name: str) -> bool:
        statement = self._parents.get(self._parents[node])
        return isinstance(statement, ast.Assign) and any(dotted(target) == name for target in statement.targets)

    def _is_orderless(self, use: ast.expr) -> bool:
        parent = self._parents.get(use)
        if isinstance(parent, (ast.Assert, ast.If, ast.While, ast.IfExp)) and parent.test is use:
            return True
        asked = isinstance(parent, ast.UnaryOp) or (
            isinstance(parent, ast.Compare)
            and any(isinstance(operator, (ast.In, ast.NotIn)) for operator in parent.ops)
        )
        return asked or self._is_given_to(use, _FIXING) or self._is_only_told(use)

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


def _names_count(node: ast.expr) -> bool:
    """Tell whether an expression has how far the run has come in it, as ``scheduler.step(epoch)`` took it, and not a loss."""
    own = {argument.arg for part in ast.walk(node) if isinstance(part, ast.Lambda) for argument in part.args.args}
    return any(isinstance(part, ast.Name) and part.id in _COUNTS - own for part in ast.walk(node))


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _is_scheduler_step(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call) or statement.value.args:
        return False
    name = dotted(statement.value.func)
    return name.endswith(".step") and "opt" not in name


def _passes_over(loop: ast.For, statement: ast.stmt) -> bool:
    """Tell whether a loop's statement is such as ``if i < done: continue``, where the loop counts batches."""
    if not isinstance(statement, ast.If) or not isinstance(statement.test, ast.Compare):
        return False
    test, iterated = statement.test, dotted(loop.iter.func) if isinstance(loop.iter, ast.Call) else ""
    compares = isinstance(test.ops[0], (ast.Lt, ast.LtE)) and not isinstance(test.comparators[0], ast.Constant)
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
    counted = isinstance(first, ast.Name) and iterated == "enumerate" and dotted(test.left) == first.id
    return (
        compares
        and isinstance(statement.body[-1], ast.Continue)
        and (counted or (iterated != "range" and _names_count(test)))
    )


def _keeps_order(loop: ast.For | ast.AsyncFor) -> bool:
    """Tell whether a loop's body builds something in the order of its turns."""
    for node in (inner for statement in loop.body for inner in ast.walk(statement)):
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in _KEEPING:
            return True
    return False
