"""Every error bitproof raises on purpose.

::

    BitproofError                    (Exception)
    ├── UsageError                   (ValueError)         the command line, or an argument, is wrong
    ├── TrailError                   (ValueError)         a trail cannot be used
    │   ├── TrailNotFoundError       (FileNotFoundError)  there is no trail there
    │   ├── TrailExistsError         (FileExistsError)    a trail is already there
    │   ├── TrailCorruptError                             damaged or cut bytes
    │   ├── TrailVersionError                             written by another version of the format
    │   └── IncomparableError                             two trails that cannot be compared
    ├── LaunchError                  (OSError)            the command could not be started
    ├── OutputError                  (OSError)            a user's output folder could not be put back
    ├── ProbeError                   (RuntimeError)       PyTorch lacks something a probe hooks into
    └── MissingExtraError            (ImportError)        an optional dependency is not installed

Every message says where, what was expected, what was found, and what to do.
"""


class BitproofError(Exception):
    """Base of every error that bitproof raises on purpose."""


class UsageError(BitproofError, ValueError):
    """The command line, or an argument, is wrong."""


class TrailError(BitproofError, ValueError):
    """A trail cannot be used."""


class TrailNotFoundError(TrailError, FileNotFoundError):
    """There is no trail at the path."""

    def __str__(self) -> str:
        """Return the message alone (``OSError`` would print an errno)."""
        return str(self.args[0])


class TrailExistsError(TrailError, FileExistsError):
    """A trail is already at the path and was not to be replaced."""

    def __str__(self) -> str:
        """Return the message alone (``OSError`` would print an errno)."""
        return str(self.args[0])


class TrailCorruptError(TrailError):
    """A trail file is damaged or cut."""


class TrailVersionError(TrailError):
    """A trail was written by another version of the format, or with another fingerprint algorithm."""


class IncomparableError(TrailError):
    """Two trails are of different models and cannot be compared."""


class LaunchError(BitproofError, OSError):
    """The command could not be started."""

    def __str__(self) -> str:
        """Return the message alone (``OSError`` would print an errno)."""
        return str(self.args[0])


class OutputError(BitproofError, OSError):
    """A user's output folder could not be put back."""

    def __str__(self) -> str:
        """Return the message alone (``OSError`` would print an errno)."""
        return str(self.args[0])


class ProbeError(BitproofError, RuntimeError):
    """This PyTorch lacks something that a probe hooks into."""


class MissingExtraError(BitproofError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, what: str) -> None:
        super().__init__(
            f"{what} needs {package}, which is not installed. Install it with: pip install 'bitproof[{extra}]'"
        )
