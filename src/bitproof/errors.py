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
    ├── StoreError                                        a store of checkpoints cannot be used
    │   ├── StoreNotFoundError       (FileNotFoundError)  there is no store there
    │   ├── StoreLockedError         (BlockingIOError)    another writer holds it
    │   ├── StoreFullError           (OSError)            the disk, or a quota, is full
    │   ├── StoreWriteError          (OSError)            the system refused a write, also when asked again
    │   ├── StoreVersionError        (ValueError)         written in another version of the format
    │   ├── CheckpointNotFoundError  (LookupError)        no checkpoint of that step or sequence
    │   ├── CheckpointCorruptError   (ValueError)         damaged, cut, or pointing out of the store
    │   ├── CheckpointMismatchError  (ValueError)         its tensors are not those it is loaded into
    │   └── TornSaveError            (RuntimeError)       a tensor changed while it was being saved
    ├── RunError                     (RuntimeError)       a run cannot go on like this
    │   ├── RunStateError            (TypeError)          a part of the state cannot be carried
    │   └── ResumeRefusedError       (ValueError)         a checkpoint did not come back as it was saved
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


class StoreError(BitproofError):
    """A store of checkpoints cannot be used."""

    def __str__(self) -> str:
        """Return the message alone (``OSError`` and ``KeyError`` would decorate it)."""
        return str(self.args[0])


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is no store at the path."""


class StoreLockedError(StoreError, BlockingIOError):
    """Another writer holds the store."""


class StoreFullError(StoreError, OSError):
    """The disk, a quota or a limit on the size of files is full; nothing that was committed is touched."""


class StoreWriteError(StoreError, OSError):
    """The system refused a write, also when asked again; nothing that was committed is touched."""


class StoreVersionError(StoreError, ValueError):
    """A checkpoint was written in another version of the format."""


class CheckpointNotFoundError(StoreError, LookupError):
    """The store has no checkpoint of that step or sequence number."""


class CheckpointCorruptError(StoreError, ValueError):
    """A checkpoint is damaged or cut, or points out of its store."""


class CheckpointMismatchError(StoreError, ValueError):
    """A checkpoint's tensors are not those that it was to be loaded into; none was changed."""


class TornSaveError(StoreError, RuntimeError):
    """A tensor changed while it was being saved; nothing was committed."""


class RunError(BitproofError, RuntimeError):
    """A run cannot go on like this."""


class RunStateError(RunError, TypeError):
    """A part of a run's state cannot be carried."""


class ResumeRefusedError(RunError, ValueError):
    """A checkpoint did not come back as it was saved."""


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
