"""Where something is in a state tree."""

import re
from typing import Any

Path = tuple[Any, ...]
_PLAIN = re.compile(r"[\w.\- ]*", re.ASCII)


def say(path: Path) -> str:
    """Write a path as Python would: ``state['model'][0]``."""
    return "state" + "".join(f"[{key!r}]" for key in path)


def tensor_name(path: Path) -> str:
    """Write a path as a tensor's name: ``model/0``. Characters that separate or cannot be printed are escaped."""
    name = "/".join(_escape(key if isinstance(key, str) else repr(key)) for key in path) or "."
    return name if name != "__metadata__" else "%5F_metadata__"  # safetensors keeps that one for itself


def type_name(value: Any) -> str:
    """Return a class's full name, without ``builtins``."""
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _escape(text: str) -> str:
    """Escape what separates names, and what a terminal or a file name could not show."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(
        char
        if char.isprintable() and char not in "/%#"
        else "".join(f"%{b:02X}" for b in char.encode("utf-8", "surrogatepass"))
        for char in text
    )
