"""Every hazard code: what it means, what shows it, what to do, and the fact behind it."""

from dataclasses import dataclass

from bitproof.compare.causes.catalogue import section
from bitproof.doctor.hazard import Hazard


@dataclass(frozen=True)
class Code:
    """One hazard code.

    Args:
        code: the promise to those who read the JSON.
        meaning: what is the case, and what comes of it.
        evidence: what shows it.
        remedy: what to do.
        fact: the fact that shows it on this machine, for ``bitproof facts``; None if there is none.
    """

    code: str
    meaning: str
    evidence: str
    remedy: str
    fact: str | None = None


CODES: tuple[Code, ...] = (
    Code(
        "not-seeded",
        "A generator that the run draws from was never seeded, so no two runs are the same.",
        "No seeding call and no restored state before the first step, and the generator's state moved.",
        "Seed every generator that is drawn from (torch, NumPy and Python's random) before anything else is done.",
    ),
    Code(
        "seeded-after-model",
        "The seed was set after the model had been built, so the first weights are other ones in every run.",
        "Torch's generator was drawn from for parameters and seeded for the first time afterwards; nothing was loaded.",
        "Seed before the model is built.",
    ),
    Code(
        "ranks-share-stream",
        "Ranks draw the same random numbers for their own samples: the same dropout masks, the same augmentation.",
        "A generator has the same states on two ranks in steps that draw from it, while their batches differ.",
        "Seed all ranks alike to build the model, then seed each with a number of its own, derived from seed and rank.",
        "D4",
    ),
    Code(
        "workers-share-stream",
        "A loader's workers each hold a copy of one generator and draw the same numbers.",
        "A generator inside the data set had the same state in two workers when each drew from it.",
        "Draw from torch's, NumPy's or Python's global generator, which each worker seeds anew, or make the generator in "
        "a worker_init_fn from torch.utils.data.get_worker_info().seed; bitproof.data.Loader keys every sample.",
        "D10",
    ),
    Code(
        "generator-not-saved",
        "A generator is drawn from all through the run and is in no checkpoint, so a resume draws other numbers.",
        "Its state moved between steps or, for the order of the data or for workers that draw, when a later epoch began (the seed that every loader's "
        "iterator draws is no finding by itself); it was not seeded anew, and none of its states is among what was saved. It is torch's, "
        "Python's or NumPy's, or one of the script's own in a loader, a data set, a layer or the script.",
        "Save its state (torch.get_rng_state(), get_state(), bit_generator.state, getstate()) with the checkpoint and restore it, or seed it anew "
        "from (seed, epoch).",
        "C9",
    ),
    Code(
        "validation-draws",
        "Validation draws from the generator that training draws from, so training changes with how often it is validated.",
        "Torch's generator moved while gradients were off between two steps, by more than the seed of a loader's iterator.",
        "Give the validation loader a generator of its own and no shuffle, or wrap validation in torch.random.fork_rng().",
        "C9",
    ),
    Code(
        "recompute-without-rng",
        "A pass under activation checkpointing draws numbers that its recomputation does not repeat, so gradients belong to another pass.",
        "A generator moved in a pass given to torch.utils.checkpoint: torch's without preserve_rng_state, or python's or NumPy's.",
        "Leave preserve_rng_state at True, and draw masks from torch's generator.",
        "D11",
    ),
    Code(
        "deterministic-set-late",
        "Deterministic algorithms were asked for after steps had been taken without them.",
        "The first call of torch.use_deterministic_algorithms(True) came after the first step.",
        "Call it before the first step, best as the first thing after importing torch.",
        "D6",
    ),
    Code(
        "deterministic-half",
        "Only a part of what determinism takes was set, so some operations still add in an order of their own.",
        "On a CUDA device, the flags of cuDNN without torch.use_deterministic_algorithms(True), or benchmarking beside it; "
        "anywhere, warn_only with an operation that has no deterministic way. Without CUDA, the flags of cuDNN do nothing "
        "and are not looked for.",
        "Call torch.use_deterministic_algorithms(True), without warn_only, and leave torch.backends.cudnn.benchmark off.",
        "D6",
    ),
    Code(
        "cublas-variable-late",
        "CUBLAS_WORKSPACE_CONFIG was set after CUDA had started, which has no effect.",
        "The variable was set in the process when torch.cuda was initialised already.",
        "Set it in the environment of the command, or before CUDA is first used.",
        "D6",
    ),
    Code(
        "cudnn-rnn-dropout",
        "The dropout between the layers of a cuDNN RNN keeps a state of its own, which no seed and no saved generator brings back.",
        "An RNN of several layers with dropout was trained on a CUDA device.",
        "Build it from one-layer RNNs with nn.Dropout between them.",
        "D9",
    ),
    Code(
        "persistent-workers-epoch",
        "The data set is told the epoch, and persistent workers go on with the copy that they were started with.",
        "A loader with persistent_workers was iterated again after a plain attribute (epoch, seed, …) of its data set had changed.",
        "Leave persistent_workers off, or keep the epoch in shared memory: torch.tensor(0).share_memory_().",
    ),
    Code(
        "order-from-set",
        "The order of a set of strings is used, and it is another one in every process.",
        "The script turns a set of strings into a list or loops over it to build something, without sorting, and "
        "PYTHONHASHSEED is not fixed.",
        "Sort it: sorted(...). Or use dict.fromkeys(...), which keeps the order of insertion.",
    ),
    Code(
        "checkpoint-in-place",
        "The only checkpoint is written over itself: a crash while it is written leaves none.",
        "One path was given to torch.save() more than once, with no other checkpoint in between and no rename after it.",
        "Save to a temporary name in the same folder, then os.replace() it to the final one.",
        "C6",
    ),
    Code(
        "checkpoint-half-precision",
        "Checkpoints hold the weights in less precision than they are trained in, so a resume goes on from rounded weights.",
        "Weights are float32 at the step and float16 or bfloat16 in everything that was saved.",
        "Save model.state_dict() as it is, and cast only what is exported.",
    ),
    Code(
        "scheduler-not-saved",
        "The learning rate's schedule is in no checkpoint, so after a resume it counts from zero.",
        "A scheduler had counted steps when an optimizer's state was saved, and nothing that was saved is a scheduler's.",
        "Save scheduler.state_dict() and load it after the optimizer's.",
        "C2",
    ),
    Code(
        "scaler-not-saved",
        "The gradient scaler is in no checkpoint, so after a resume it starts at its first scale and skips other steps.",
        "A scaler was in use when an optimizer's state was saved, and nothing that was saved is a scaler's.",
        "Save scaler.state_dict() and load it.",
        "C8",
    ),
)

BY_CODE = {code.code: code for code in CODES}


def hazard(code: str, summary: str, where: str | None = None) -> Hazard:
    """Return a hazard with its code's remedy and fact."""
    known = BY_CODE[code]
    return Hazard(code, where, summary, known.remedy, known.fact)


def page() -> str:
    """Return the documentation of every code, in Markdown."""
    lines = [_INTRODUCTION]
    for code in CODES:
        shown = {"Shown by": f"fact {code.fact}"} if code.fact else {}
        lines += section(code.code, code.meaning, {"Evidence": code.evidence, "Remedy": code.remedy, **shown})
    return "\n".join(lines)


_INTRODUCTION = """\
# The doctor

`bitproof doctor` looks for hazards: what has not gone wrong yet, and will make two runs differ, or a resume inexact, when its time comes.

```bash
bitproof doctor                                        # this environment
bitproof doctor -- python train.py --out {out}         # the environment, the script, and its first 20 steps
bitproof doctor --steps 200 -- python train.py --out {out}
bitproof doctor --list
```

The command is run for real and ended after `--steps` steps. What it writes, it writes: put `{out}` where its checkpoint folder goes and it gets
a fresh one, or name a folder that it always writes to with `--output`, and that is put back afterwards. A hazard is named with the line of your script, why it is one,
what to do, and the fact that shows it (`bitproof facts`). What could not be looked for in these steps is said too: a checkpoint
that is first written at step 500 is not seen in 20 steps.

Nothing that is watched changes the run: it takes the same steps to the same bits.

| exit status | |
|---|---|
| 0 | no hazard was found |
| 1 | hazards were found |
| 2 | the command line or an input is wrong |
| 3 | the command took no step, or failed by itself |

`--json` prints `{"format": 1, "environment": {…}, "hazards": [{"code", "where", "summary", "remedy", "fact"}], "steps", "not_looked_for": [{"code", "why"}], "reason", "message"}`.
Codes are a promise: they are added, and never change their meaning.

A hazard is named only where the run shows it. A scheduler that is not saved counts if checkpoints for resuming are (they hold an optimizer's state); a set
counts if its elements can be seen to be strings and its order is used; ranks count if they draw the same numbers for other samples. What a library does on
its own (how a Trainer writes its files, how it brings back the order of the data) is not blamed on the script. Files into which a script puts states by other
means than `torch.save()` are not looked into; then what is in no checkpoint is not looked for, and that is said.
"""
