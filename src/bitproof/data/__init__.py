"""Order and per-sample randomness as pure functions, and loaders that hold their position."""

from bitproof.data.audit import Audit, Topology, audit
from bitproof.data.carry import InexactResumeWarning, carry
from bitproof.data.content import fingerprint_of
from bitproof.data.loader import Loader
from bitproof.data.mixture import Mixture
from bitproof.data.order import ORDER_VERSION, Order
from bitproof.data.randomness import sample_rng
from bitproof.data.resume_loss import ResumeLoss, measure_resume
from bitproof.data.shuffle_buffer import ShuffleBuffer
from bitproof.data.torch_loader import OrderChangedWarning

__all__ = [
    "ORDER_VERSION",
    "Audit",
    "InexactResumeWarning",
    "Loader",
    "Mixture",
    "Order",
    "OrderChangedWarning",
    "ResumeLoss",
    "ShuffleBuffer",
    "Topology",
    "audit",
    "carry",
    "fingerprint_of",
    "measure_resume",
    "sample_rng",
]
