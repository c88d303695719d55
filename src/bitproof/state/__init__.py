"""What a run must carry, as a tree; and how it is put back."""

from bitproof.state.components import Part, Report, capture, restore, restore_part
from bitproof.state.errors import (
    StateCorruptError,
    StateError,
    StateMismatchError,
    StateVersionError,
    UnsupportedStateError,
)
from bitproof.state.forgotten import Forgotten, forgotten
from bitproof.state.restore import restore_into
from bitproof.state.tree import Encoded, decode, encode, snapshot

__all__ = [
    "Encoded",
    "Forgotten",
    "Part",
    "Report",
    "StateCorruptError",
    "StateError",
    "StateMismatchError",
    "StateVersionError",
    "UnsupportedStateError",
    "capture",
    "decode",
    "encode",
    "forgotten",
    "restore",
    "restore_into",
    "restore_part",
    "snapshot",
]
