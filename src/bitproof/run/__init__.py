"""Run: what a training loop holds. It saves, resumes exactly, and proves each resume."""

from bitproof.run.every import Every
from bitproof.run.log import Logged, read_log
from bitproof.run.notices import ForgottenWarning, ResumeDiffersWarning, SaveFailedWarning
from bitproof.run.run import Run
from bitproof.run.signals import REQUEUE_STATUS
from bitproof.store.retention import Keep

__all__ = [
    "REQUEUE_STATUS",
    "Every",
    "ForgottenWarning",
    "Keep",
    "Logged",
    "ResumeDiffersWarning",
    "Run",
    "SaveFailedWarning",
    "read_log",
]
