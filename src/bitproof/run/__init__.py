"""Run: what a training loop holds. It saves, resumes exactly, and proves each resume."""

from bitproof.run.every import Every
from bitproof.run.run import ForgottenWarning, ResumeDiffersWarning, Run, SaveFailedWarning
from bitproof.run.signals import REQUEUE_STATUS
from bitproof.store.retention import Keep

__all__ = [
    "REQUEUE_STATUS",
    "Every",
    "ForgottenWarning",
    "Keep",
    "ResumeDiffersWarning",
    "Run",
    "SaveFailedWarning",
]
