"""What a saver notes with a checkpoint: anything that JSON can hold."""

from collections.abc import Mapping
from typing import Any

import msgspec

from bitproof.errors import UsageError


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of facts that nothing can change, as JSON gives it back.

    Raises:
        UsageError: one is nothing that JSON can hold.
    """
    try:
        return msgspec.json.decode(msgspec.json.encode(dict(facts)), type=dict[str, Any])
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"The facts of a checkpoint must be what JSON can hold: {error}") from error
