"""Run a program and return the plain values that its names stand for at the end.

Only the standard library is used, and no other module of this package: an interpreter without bitproof runs this file too.
"""

import json
import sys
import types
from typing import Any

_SCALARS = (bool, int, float, str, type(None))


def run(text: str, name: str) -> dict[str, Any]:
    """Run a program as the main module.

    Args:
        text: the program.
        name: for its traceback.
    """
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main  # so that what the program defines can be pickled by name
    exec(compile(text, name, "exec"), main.__dict__)  # noqa: S102  # a text of this package
    return {key: value for key, value in main.__dict__.items() if not key.startswith("_") and _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    return isinstance(value, _SCALARS)


if __name__ == "__main__":
    del sys.path[0]  # this folder: its files are no modules of their own
    with open(sys.argv[1], encoding="utf-8") as source, open(sys.argv[2], "w", encoding="utf-8") as answer:  # noqa: PTH123
        json.dump(run(source.read(), sys.argv[1]), answer)
