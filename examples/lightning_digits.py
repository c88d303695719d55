"""Train on scikit-learn's digits with Lightning, from a loader that shuffles.

Lightning does all saving and resuming: what to save, and when, is asked of its ModelCheckpoint.

    python examples/lightning_digits.py --out run             # 3 epochs of 18 steps, a checkpoint every 5 steps
    python examples/lightning_digits.py --out run --resume    # go on from the newest checkpoint
"""

import argparse
import logging
from importlib.metadata import distribution
from pathlib import Path

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def load_digits() -> TensorDataset:
    """Read the table that scikit-learn ships: importing all of scikit-learn would take longer than the training."""
    table = np.loadtxt(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz"), delimiter=",")
    pixels = torch.from_numpy(table[:, :-1]).float() / 16
    return TensorDataset(pixels.unflatten(1, (8, 8)), torch.from_numpy(table[:, -1]).long())


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.stem.rpartition("=")[2])


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits with Lightning.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    parser.add_argument("--steps", type=int, default=54, help="optimizer steps in all (default: 54)")
    parser.add_argument("--save-every", type=int, default=5, help="steps between checkpoints (default: 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="more only wait for each other on so small a network")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    lightning.seed_everything(options.seed, verbose=False)
    checkpoints = ModelCheckpoint(
        dirpath=options.out, filename="{step}", every_n_train_steps=options.save_every, save_top_k=-1
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=options.steps,
        callbacks=[checkpoints],
        default_root_dir=options.out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    newest = max(options.out.glob("step=*.ckpt"), key=step_of, default=None) if options.resume else None
    if newest is not None:
        print(f"resuming from {newest}")
    elif options.resume:
        print(f"no checkpoint in {options.out}: starting from the beginning")
    trainer.fit(Classifier(), DataLoader(load_digits(), batch_size=100, shuffle=True), ckpt_path=newest)
    trainer.save_checkpoint(options.out / "final.ckpt")
    print(f"trained to step {trainer.global_step}, loss {trainer.callback_metrics['loss']:.4f}")


if __name__ == "__main__":
    main()
