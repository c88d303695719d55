"""Every cause code: the finding, the evidence it rests on, the remedy."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """One cause code.

    Args:
        code: the promise to those who read the JSON.
        finding: what is the case.
        evidence: what shows it.
        remedy: what to do.
        sources: public reports of this kind, as repository and number of an issue or pull request.
    """

    code: str
    finding: str
    evidence: str
    remedy: str
    sources: tuple[str, ...] = ()


CODES: tuple[Code, ...] = (
    Code(
        "not-resumed",
        "The resumed leg started from the reference's start, though a checkpoint had been written before the kill.",
        "The leg's first state equals the reference's first state; the interrupted leg had saved a file.",
        "Check that the resume option reaches the script, and that it looks for checkpoints where they are written.",
        ("Lightning #1182",),
    ),
    Code(
        "weights-not-restored",
        "Weights at the seam are not those of the reference.",
        "Which tensors differ at the first step after the seam, whether their dtype changed, and by how much.",
        "Load the model's state dict into the model that is trained, with strict=True, and save it in full precision.",
        ("nanoGPT #325", "ultralytics #17282", "YOLOX #1318"),
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
        ("OpenNMT-py #617", "ultralytics #5980"),
    ),
    Code(
        "optimizer-misassigned",
        "The optimizer's state was restored, but sits on other parameters.",
        "The same moments are found in both legs, under other parameters' names.",
        "Build parameter groups in one fixed order: Optimizer.load_state_dict matches by position, not by name.",
        ("torchgeo #1918",),
    ),
    Code(
        "hyperparameters-not-restored",
        "The learning rate or another setting of a parameter group differs at the seam.",
        "The settings that differ at the first step after the seam.",
        "Load the optimizer's state dict (it has the settings), then the scheduler's.",
        ("pytorch #60265", "pytorch #29697"),
    ),
    Code(
        "schedule-restarted",
        "The learning rate is right at the seam and leaves the reference's later: the schedule's counter started again.",
        "How long the rates stayed equal, both rates where they part, and whether a scheduler's state was loaded.",
        "Save scheduler.state_dict() after scheduler.step(), and load it.",
        ("Lightning #14699", "Lightning #1772"),
    ),
    Code(
        "scaler-not-restored",
        "The gradient scaler's scale or its growth counter differs at the seam.",
        "The scaler's state in both legs at the first step that differs.",
        "Save scaler.state_dict() and load it after the scaler is made.",
        ("transformers #11663", "detectron2 #3686"),
    ),
    Code(
        "rng-reseeded",
        "A generator that is drawn from was seeded again instead of continuing.",
        "Its state at the seam equals one the reference had earlier, or a seeding call came last.",
        "Save the generator's state with the checkpoint, and restore it after every seeding call.",
        ("nanoGPT #467",),
    ),
    Code(
        "rng-not-restored",
        "A generator that is drawn from does not have the reference's state at the seam.",
        "Its state at the seam is none that the reference had.",
        "Save the generator's state with the checkpoint and restore it (torch, python and NumPy each have one).",
        ("accelerate #3960",),
    ),
    Code(
        "rng-shifted",
        "A generator is on the reference's stream, but some draws ahead or behind.",
        "The number of 32-bit draws between the two states, found by running the stream forward.",
        "Restore generators last, right before the training loop: something drew from them in between.",
        ("pytorch #80119",),
    ),
    Code(
        "data-restarted",
        "The first batch after the seam is one the reference had at a start: of the run or of an epoch.",
        "Which of the reference's batches it equals.",
        "Save the position in the data (and the shuffle's seed or generator) and skip to it when resuming.",
        ("Lightning #1182", "accelerate #4233"),
    ),
    Code(
        "data-skipped",
        "Batches were left out: the first batch after the seam comes later in the reference.",
        "Which of the reference's batches it equals, and how many lie between.",
        "Save the position that training has consumed, not the one that workers have fetched.",
        ("NeMo RL #3599", "datasets #7447"),
    ),
    Code(
        "data-repeated",
        "Batches are seen again: the first batch after the seam came earlier in the reference.",
        "Which of the reference's batches it equals, and how many are repeated.",
        "Count the position in micro-batches, and save it with every checkpoint.",
        ("gpt-neox #308", "accelerate #2016", "KempnerForge #57"),
    ),
    Code(
        "data-reordered",
        "The same samples come in another order.",
        "How many of the batch's samples the reference had in the same place, and elsewhere.",
        "Restore the shuffle's generator or seed as it was when the epoch began, then skip.",
        ("transgenic #59",),
    ),
    Code(
        "data-changed",
        "The same positions of the dataset gave other content: augmentation, or other data.",
        "Equal sample indices, other digests.",
        "Make augmentation a function of (seed, epoch, index), or restore the generators that it draws from.",
        ("albumentations #1874",),
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
        ("yolov5 #310",),
    ),
    Code(
        "other-state-not-restored",
        "Something else that is saved came back different, though training does not read it.",
        "Entries of the next checkpoint that differ although training is equal.",
        "Restore it from the checkpoint, or leave it out of the checkpoint if it does not matter.",
        ("Lightning #1463",),
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
        ("Megatron-LM #6858",),
    ),
    Code(
        "nondeterministic-op",
        "Equal inputs gave other outputs: an operation adds in an order that changes from run to run.",
        "Weights, batch and generators are equal, the loss or the gradients are not.",
        "Call torch.use_deterministic_algorithms(True), and fix the number of threads.",
        ("pytorch #193317",),
    ),
    Code(
        "uninitialized-memory",
        "Equal inputs gave other outputs: an operation reads memory that nothing wrote.",
        "Weights, batch and generators are equal, the loss or the gradients are not.",
        "Look for torch.empty and padding that is read before it is written.",
        ("pytorch #193317",),
    ),
    Code(
        "environment-changed",
        "Versions, flags, threads, CPU capability, device, hash seed, seeds, worker count or optimizer settings differ.",
        "The keys that differ and both values.",
        "Run both under the same settings.",
        ("pytorch #15170", "pytorch #169252", "pytorch #154031"),
    ),
    Code(
        "recompute-changed",
        "Under activation checkpointing the recomputed forward pass was another one.",
        "The loss is equal and the gradients are not, and activation checkpointing is used.",
        "Use preserve_rng_state=True, and draw masks from torch's generator, not from random or NumPy.",
        ("OLMo-core #828",),
    ),
    Code(
        "torn-checkpoint",
        "The resume read a file that was cut off while it was written.",
        "The file was half written when the process died, and the resumed leg read it.",
        "Write to a temporary name in the same folder, then os.replace() it to the final one.",
        ("Lightning #688",),
    ),
    Code(
        "incomplete-checkpoint-chosen",
        "The resume chose a checkpoint folder whose writing had not ended.",
        "The resumed leg read from the folder in which a file was half written when the process died.",
        "Write the folder under a temporary name and rename it, or write a marker file last and require it.",
        ("RLinf #1469",),
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
        ("detectron2 #3381",),
    ),
    Code(
        "unknown",
        "No rule fits the evidence.",
        "What differs first, and what was equal.",
        "Look for what the script keeps and does not save: a counter, a generator of its own, a state carried along, a flag.",
    ),
)

BY_CODE = {code.code: code for code in CODES}


def page() -> str:
    """Return the documentation of every code, in Markdown."""
    lines = [_INTRODUCTION]
    for code in CODES:
        sources = {"Seen in": ", ".join(code.sources)} if code.sources else {}
        lines += section(code.code, code.finding, {"Evidence": code.evidence, "Remedy": code.remedy, **sources})
    return "\n".join(lines)


def section(code: str, meaning: str, facts: Mapping[str, str]) -> list[str]:
    """Return the lines that document one code of a catalogue, in Markdown."""
    return [f"## {code}", "", meaning, "", *(f"- **{label}**: {text}" for label, text in facts.items()), ""]


_INTRODUCTION = """\
# Causes

What `bitproof prove` and `bitproof diff` can name when two runs part. `bitproof causes` prints the same list. A code is
a promise to whoever reads the JSON: codes are added, and never change their meaning.

How sure a cause is:

- **certain**: the evidence leaves no doubt, and the uninterrupted command was repeated and came out the same up to the
  step where the legs part. With `--no-control`, or where the repetition was not possible, nothing is certain.
- **likely**: the evidence fits, and something else could still be behind it. What follows from a certain cause is
  listed as likely: data that starts again since its generator was seeded again, for instance.
- **possible**: nothing speaks against it.

A resume can join rightly and part later, so equality is checked to the end. The first step that differs counts, and in
it the first facet in this order: weights, buffers, optimizer, hyperparameters, scaler, mode, batch, loss, gradients.
What is saved is compared too; it decides only if training is equal to its end, and before that it is evidence.
Of two runs that both start anew, only floating-point tensors in what they save are compared, since a clock may differ.
"""
