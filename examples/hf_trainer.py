"""Train a tiny GPT-2 with the Hugging Face Trainer, on arithmetic progressions made on the spot.

The Trainer does all saving and resuming. With --augment the data set draws from torch's generator whenever an item is
fetched, as most image pipelines do.

    python examples/hf_trainer.py --out run             # 64 steps, a checkpoint every 10
    python examples/hf_trainer.py --out run --resume    # go on from the newest checkpoint
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils.logging import disable_progress_bar

SEQUENCES, LENGTH, VOCABULARY, MASK = 200, 24, 98, 97  # a prime number of values, and one token that hides a value


class Progressions(Dataset[dict[str, Tensor]]):
    """Item i counts up from i by a step that depends on i, modulo 97."""

    def __init__(self, *, augment: bool) -> None:
        self.augment = augment

    def __len__(self) -> int:
        return SEQUENCES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (index + (1 + index % 7) * torch.arange(LENGTH)) % MASK
        visible = tokens
        if self.augment:
            visible = tokens.masked_fill(torch.rand(LENGTH) < 0.1, MASK)
        return {"input_ids": visible, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a tiny GPT-2 with the Hugging Face Trainer.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    parser.add_argument("--augment", action="store_true", help="hide random tokens, drawn when an item is fetched")
    parser.add_argument("--steps", type=int, default=64, help="optimizer steps in all (default: 64)")
    parser.add_argument("--save-every", type=int, default=10, help="steps between checkpoints (default: 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="more only wait for each other on so small a network")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    disable_progress_bar()
    arguments = TrainingArguments(
        output_dir=str(options.out),
        max_steps=options.steps,
        save_steps=options.save_every,
        per_device_train_batch_size=8,  # 25 steps an epoch
        learning_rate=3e-3,
        warmup_steps=5,
        logging_steps=10,
        seed=options.seed,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    torch.manual_seed(options.seed)  # the Trainer seeds too, but after the model's weights are drawn
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    model.loss_type = "ForCausalLM"  # what it falls back to; named, it does not warn
    trainer = Trainer(model=model, args=arguments, train_dataset=Progressions(augment=options.augment))

    newest = get_last_checkpoint(str(options.out)) if options.resume and options.out.is_dir() else None
    if newest is not None:
        print(f"resuming from {newest}")
    elif options.resume:
        print(f"no checkpoint in {options.out}: starting from the beginning")
    trainer.train(resume_from_checkpoint=newest)


if __name__ == "__main__":
    main()
