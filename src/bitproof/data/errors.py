"""Errors of the data layer.

Every message says where, what was expected, what was found and what to do::

    BitproofError
    └── DataError
        ├── DataLengthError      (ValueError)    a data set or order of a length that cannot be used
        ├── PositionError        (IndexError)    a position outside the stream
        ├── BatchError           (ValueError)    a batch size that does not fit the data or the ranks
        ├── TopologyError        (ValueError)    rank or world size that cannot be
        ├── LoaderStateError     (ValueError)    a state that cannot be used here
        │   ├── OrderVersionError                its order was computed by another version
        │   └── DataChangedError                 it belongs to other data
        ├── StaleIteratorError   (RuntimeError)  an iterator whose loader was moved
        ├── UnpicklableError     (TypeError)     something that cannot travel to a spawned worker
        ├── NotCarriedError      (TypeError)     a loader that cannot be resumed exactly
        ├── MixtureError         (ValueError)    weights or sources that cannot be mixed
        ├── TargetError          (ValueError)    a loader named on the command line that is not there
        └── SampleRandomError    (RuntimeError)  per-sample randomness asked for where there is no sample
"""

from bitproof.errors import BitproofError


class DataError(BitproofError):
    """Base of every error of the data layer."""


class DataLengthError(DataError, ValueError):
    """A data set or order has a length that cannot be used."""


class PositionError(DataError, IndexError):
    """A position lies outside the stream of samples."""


class BatchError(DataError, ValueError):
    """A batch size does not fit the data or the ranks."""


class TopologyError(DataError, ValueError):
    """A rank or a world size cannot be."""


class LoaderStateError(DataError, ValueError):
    """A loader state cannot be used here."""


class OrderVersionError(LoaderStateError):
    """A state's order was computed by another version of the algorithm."""


class DataChangedError(LoaderStateError):
    """A state belongs to data of another length or content."""


class StaleIteratorError(DataError, RuntimeError):
    """An iterator is used after its loader was moved to another position."""


class UnpicklableError(DataError, TypeError):
    """Something cannot travel to a worker process that is not forked."""


class NotCarriedError(DataError, TypeError):
    """A loader cannot be resumed exactly; the message says why and what to use."""


class MixtureError(DataError, ValueError):
    """Weights or sources cannot be mixed."""


class TargetError(DataError, ValueError):
    """A loader that was named on the command line is not there."""


class SampleRandomError(DataError, RuntimeError):
    """Per-sample randomness was asked for where no sample is being read, or cannot be set."""
