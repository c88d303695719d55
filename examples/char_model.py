"""Train a small GPT to write Python, character by character, on the standard library's own source.

There is no loader and no epoch: every batch is cropped from the text at random, so the generator's state is the place in
the data. The rate warms up from zero. With --forget rng a resumed run draws the crops of the start once more, which is how
many a training script resumes.

    python examples/char_model.py --out run                         # 40 steps, a checkpoint every 8
    python examples/char_model.py --out run --resume                # go on from the newest checkpoint
    python examples/char_model.py --out run --resume --forget rng   # the same, with the generator left out
"""

import argparse
import math
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

MODULES = ("argparse", "ast", "csv", "dataclasses", "enum", "heapq", "inspect", "json/decoder", "shutil", "textwrap")
CONTEXT = 64  # characters a crop
BATCH_SIZE = 16
WIDTH, HEADS, LAYERS = 64, 4, 2
WARM_UP = 5  # steps


def read_text() -> tuple[Tensor, str]:
    """Return the text as positions in its alphabet, and the alphabet."""
    library = Path(sysconfig.get_path("stdlib"))
    text = "\n".join((library / f"{module}.py").read_text(encoding="utf-8") for module in MODULES)
    alphabet = "".join(sorted(set(text)))
    number = {character: index for index, character in enumerate(alphabet)}
    return torch.tensor([number[character] for character in text]), alphabet


def random_crops(text: Tensor) -> tuple[Tensor, Tensor]:
    """Draw crops from torch's generator: each character, and the one that follows it; both (BATCH_SIZE, CONTEXT)."""
    starts = torch.randint(len(text) - CONTEXT, (BATCH_SIZE, 1))
    crops = text[starts + torch.arange(CONTEXT + 1)]
    return crops[:, :-1], crops[:, 1:]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix_heads = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        heads = self.query_key_value(self.attention_norm(hidden)).unflatten(-1, (3, HEADS, -1)).transpose(1, 3)
        attended = functional.scaled_dot_product_attention(*heads.unbind(2), is_causal=True)
        hidden = hidden + self.mix_heads(attended.transpose(1, 2).flatten(2))
        return hidden + self.feed_forward(hidden)


class CharacterModel(nn.Module):
    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(alphabet, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.predict = nn.Linear(WIDTH, alphabet)

    def forward(self, crops: Tensor) -> Tensor:
        hidden = self.characters(crops) + self.positions(torch.arange(crops.shape[1]))
        return self.predict(self.norm(self.blocks(hidden)))


def rate_factor(step: int, steps: int) -> float:
    """Rise from 0 in a line, then fall along a cosine."""
    if step < WARM_UP:
        return step / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT on the standard library's source.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    parser.add_argument("--forget", choices=["rng"], help="leave this out when resuming")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps in all (default: 40)")
    parser.add_argument("--save-every", type=int, default=8, help="steps between checkpoints (default: 8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="more gain little on so small a network")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    text, alphabet = read_text()
    model = CharacterModel(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, options.steps))
    done = 0

    if options.resume:
        newest = max(options.out.glob("checkpoint-*.pt"), default=None)  # the names sort by step
        if newest is None:
            print(f"no checkpoint in {options.out}: starting from the beginning")
        else:
            state = torch.load(newest)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            scheduler.load_state_dict(state["scheduler"])
            if options.forget != "rng":
                torch.set_rng_state(state["rng"])
            done = state["steps"]
            print(f"resumed from {newest} at step {done}")

    for step in range(done + 1, options.steps + 1):
        crops, following = random_crops(text)
        loss = functional.cross_entropy(model(crops).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step:3}  loss {loss.item():.4f}  rate {scheduler.get_last_lr()[0]:.6f}", flush=True)
        scheduler.step()
        if step % options.save_every == 0 or step == options.steps:
            path = options.out / f"checkpoint-{step:05}.pt"
            state = {
                "steps": step,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "rng": torch.get_rng_state(),
            }
            unfinished = path.with_suffix(".tmp")
            torch.save(state, unfinished)
            unfinished.replace(path)  # all of it or nothing


if __name__ == "__main__":
    main()
