"""Every cause code: the finding, the evidence it rests on, the remedy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """One cause code.

    Args:
        code: the promise to those who read the JSON.
        finding: what is the case.
        evidence: what shows it.
        remedy: what to do.
    """

    code: str
    finding: str
    evidence: str
    remedy: str


CODES: tuple[Code, ...] = (
    Code(
        "not-resumed",
        "The resumed leg started from the reference's start, though a checkpoint had been written before the kill.",
        "The leg's first state equals the reference's first state; the interrupted leg had saved a file.",
        "Check that the resume option reaches the script, and that it looks for checkpoints where they are written.",
    ),
    Code(
        "weights-not-restored",
        "Weights at the seam are not those of the reference.",
        "Which tensors differ at the first step after the seam, whether their dtype changed, and by how much.",
        "Load the model's state dict into the model that is trained, with strict=True, and save it in full precision.",
    ),
    Code(
        "buffers-not-restored",
        "Buffers (batch-norm statistics and the like) at the seam are not those of the reference.",
        "Which buffers differ at the first step after the seam while the weights are equal.",
        "Save and load model.state_dict(), which has buffers, not only the parameters.",
    ),
    Code(
        "optimizer-not-restored",
        "The optimizer's state (moments, step counters) is empty or different at the seam.",
        "The optimizer's tensors at the first step after the seam, against the reference's.",
        "Save optimizer.state_dict() and load it after the optimizer was built over the same parameters.",
    ),
    Code(
        "optimizer-misassigned",
        "The optimizer's state was restored, but sits on other parameters.",
        "The same moments are found in both legs, under other parameters' names.",
        "Build parameter groups in one fixed order: Optimizer.load_state_dict matches by position, not by name.",
    ),
    Code(
        "hyperparameters-not-restored",
        "The learning rate or another setting of a parameter group differs at the seam.",
        "The settings that differ at the first step after the seam.",
        "Load the optimizer's state dict (it has the settings), then the scheduler's.",
    ),
    Code(
        "schedule-restarted",
        "The learning rate is right at the seam and leaves the reference's later: the schedule's counter started again.",
        "The rates of both legs from the seam to the step where they part.",
        "Save scheduler.state_dict() and load it.",
    ),
    Code(
        "scaler-not-restored",
        "The gradient scaler's scale or its growth counter differs at the seam.",
        "The scaler's state in both legs at the first step that differs.",
        "Save scaler.state_dict() and load it after the scaler is made.",
    ),
    Code(
        "rng-reseeded",
        "A generator that is drawn from was seeded again instead of continuing.",
        "Its state at the seam equals one the reference had earlier, or a seeding call came last.",
        "Save the generator's state with the checkpoint, and restore it after every seeding call.",
    ),
    Code(
        "rng-not-restored",
        "A generator that is drawn from does not have the reference's state at the seam.",
        "Its state at the seam is none that the reference had.",
        "Save the generator's state with the checkpoint and restore it (torch, python and NumPy each have one).",
    ),
    Code(
        "rng-shifted",
        "A generator is on the reference's stream, but some draws ahead or behind.",
        "The number of 32-bit draws between the two states, found by running the stream forward.",
        "Restore generators last, right before the training loop: something drew from them in between.",
    ),
    Code(
        "data-restarted",
        "The first batch after the seam is one the reference had at a start: of the run or of an epoch.",
        "Which of the reference's batches it equals.",
        "Save the position in the data (and the shuffle's seed or generator) and skip to it when resuming.",
    ),
    Code(
        "data-skipped",
        "Batches were left out: the first batch after the seam comes later in the reference.",
        "Which of the reference's batches it equals, and how many lie between.",
        "Save the position that training has consumed, not the one that workers have fetched.",
    ),
    Code(
        "data-repeated",
        "Batches are seen again: the first batch after the seam came earlier in the reference.",
        "Which of the reference's batches it equals, and how many are repeated.",
        "Count the position in micro-batches, and save it with every checkpoint.",
    ),
    Code(
        "data-reordered",
        "The same samples come in another order.",
        "How many of the batch's samples the reference had in the same place, and elsewhere.",
        "Restore the shuffle's generator or seed as it was when the epoch began, then skip.",
    ),
    Code(
        "data-changed",
        "The same positions of the dataset gave other content: augmentation, or other data.",
        "Equal sample indices, other digests.",
        "Make augmentation a function of (seed, epoch, index), or restore the generators that it draws from.",
    ),
    Code(
        "accumulation-lost",
        "The gradients of an open accumulation window are gone.",
        "The first step after the seam took fewer backward passes than the reference's, and its gradients differ.",
        "Save checkpoints only between steps, or save the .grad of every parameter too.",
    ),
    Code(
        "average-not-restored",
        "Averaged weights (EMA, SWA) or their counter came back different.",
        "Entries of the next checkpoint that differ although training is equal.",
        "Save and load the averaged model's own state dict, its counter included.",
    ),
    Code(
        "other-state-not-restored",
        "Something else that is saved came back different, though training does not read it.",
        "Entries of the next checkpoint that differ although training is equal.",
        "Restore it from the checkpoint, or leave it out of the checkpoint if it does not matter.",
    ),
    Code(
        "mode-not-restored",
        "A module trains in another train/eval mode than the reference's.",
        "The modules whose mode differs at the first step after the seam.",
        "Set train() and eval() from the step number or from the checkpoint, not only when the phase begins.",
    ),
    Code(
        "ranks-share-stream",
        "Ranks that drew different random numbers draw the same ones after the seam.",
        "The ranks' generators differ in the reference and are equal in the resumed leg.",
        "Save and restore each rank's generators separately.",
    ),
    Code(
        "nondeterministic-op",
        "Equal inputs gave other outputs: an operation adds in an order that changes from run to run.",
        "Weights, batch and generators are equal, the loss or the gradients are not.",
        "Call torch.use_deterministic_algorithms(True), and fix the number of threads.",
    ),
    Code(
        "uninitialized-memory",
        "Equal inputs gave other outputs: an operation reads memory that nothing wrote.",
        "Weights, batch and generators are equal, the loss or the gradients are not.",
        "Look for torch.empty and padding that is read before it is written.",
    ),
    Code(
        "environment-changed",
        "Versions, flags, threads, CPU capability, device, hash seed, seeds or worker count differ.",
        "The keys that differ and both values.",
        "Run both under the same settings.",
    ),
    Code(
        "recompute-changed",
        "Under activation checkpointing the recomputed forward pass was another one.",
        "The loss is equal and the gradients are not, and activation checkpointing is used.",
        "Use preserve_rng_state=True, and draw masks from torch's generator, not from random or NumPy.",
    ),
    Code(
        "torn-checkpoint",
        "The resume read a file that was cut off while it was written.",
        "The file was half written when the process died, and the resumed leg read it.",
        "Write to a temporary name in the same folder, then os.replace() it to the final one.",
    ),
    Code(
        "incomplete-checkpoint-chosen",
        "The resume chose a checkpoint folder whose writing had not ended.",
        "The resumed leg read from the folder in which a file was half written when the process died.",
        "Write the folder under a temporary name and rename it, or write a marker file last and require it.",
    ),
    Code(
        "stopped-early",
        "The legs together took fewer steps than the reference.",
        "The last step of each.",
        "Count steps over the whole run, and stop at the total, not at what is left of an epoch.",
    ),
    Code(
        "trained-too-long",
        "The legs together took more steps than the reference.",
        "The last step of each.",
        "Count steps over the whole run: the target is the total, not the steps of this leg.",
    ),
    Code(
        "unknown",
        "No rule fits the evidence.",
        "What differs first, and what was equal.",
        "Look at the evidence; record both runs with more detail, and tell us.",
    ),
)

BY_CODE = {code.code: code for code in CODES}
