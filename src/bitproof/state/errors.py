"""What can go wrong with the state of a run.

::

    BitproofError                    (Exception)
    └── StateError                                        a state cannot be saved or restored
        ├── UnsupportedStateError    (TypeError)          the tree has no form for a value of this type
        ├── StateCorruptError        (ValueError)         a document and its tensors do not fit, or are damaged
        ├── StateVersionError        (ValueError)         a document was written by another version of the format
        └── StateMismatchError       (ValueError)         a saved state does not fit the live object
"""

from bitproof.errors import BitproofError


class StateError(BitproofError):
    """A state cannot be saved or restored."""


class UnsupportedStateError(StateError, TypeError):
    """A state tree holds a value that has no form in it."""


class StateCorruptError(StateError, ValueError):
    """A state document does not fit its tensors, or is damaged."""


class StateVersionError(StateError, ValueError):
    """A state document was written by another version of the format."""


class StateMismatchError(StateError, ValueError):
    """A saved state does not fit the live object that it is restored into."""
