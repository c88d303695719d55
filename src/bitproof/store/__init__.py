"""Checkpoints at rest: objects, commits, verification, retention."""

from bitproof.store.background import BackgroundSaver
from bitproof.store.checkpoint import Checkpoint, Tensors
from bitproof.store.lock import Holder, Lock
from bitproof.store.manifest import Commit
from bitproof.store.retention import Keep
from bitproof.store.store import Problem, Store
from bitproof.store.sweep import Swept
from bitproof.store.system import System

__all__ = [
    "BackgroundSaver",
    "Checkpoint",
    "Commit",
    "Holder",
    "Keep",
    "Lock",
    "Problem",
    "Store",
    "Swept",
    "System",
    "Tensors",
]
