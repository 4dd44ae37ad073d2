"""Train ResNet-18 on made-up images: on Ascend NPU, Cambricon MLU, NVIDIA GPU or the CPU, on one card or several.

Nothing is downloaded: each class is a pattern, each image is its class's pattern with noise. Replace `Patterns` by
your own data set. Under torchrun (WORLD_SIZE is set) every process takes one card.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from devices import BACKENDS, choose, place
from model import resnet18
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

CLASSES = 10


class Patterns(Dataset):
    """`count` noisy images of 32x32; the same index gives the same image on every host."""

    def __init__(self, count, seed=0):
        self.count, self.seed = count, seed
        self.patterns = torch.randn(CLASSES, 3, 32, 32, generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        noise = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = index % CLASSES
        return self.patterns[label] + torch.randn(3, 32, 32, generator=noise), label


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", choices=["auto", *BACKENDS])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--images", type=int, default=10_000, help="images an epoch")
    parser.add_argument("--batch", type=int, default=128, help="images a step, on each card")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--max-steps", type=int, default=0, help="stop after so many steps; 0: no limit")
    parser.add_argument("--resume", default=os.environ.get("JOBRUNNER_RESUME_FROM", ""), help="a checkpoint")
    return parser.parse_args()


def save(model, optimizer, epoch, step):
    """Written aside and renamed, so that a checkpoint is whole or not there."""
    folder = Path("ckpt")
    folder.mkdir(exist_ok=True)
    final = folder / f"step-{step:06d}.pt"
    aside = folder / f".{final.name}.part"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "step": step}, aside)
    os.replace(aside, final)


class Trainer:
    """One process's share of the training."""

    def __init__(self, options):
        self.options = options
        self.rank = int(os.environ.get("RANK", 0))
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        kind = choose(options.device)
        self.device = place(kind, int(os.environ.get("LOCAL_RANK", 0)))
        self.plain = resnet18(CLASSES, options.width).to(self.device)
        self.optimizer = torch.optim.SGD(self.plain.parameters(), lr=options.lr, momentum=0.9, weight_decay=5e-4)
        self.epoch, self.step, self.stopping = 0, 0, False
        if options.resume:
            self.load(options.resume)
        self.model = self.plain
        if self.world > 1:
            torch.distributed.init_process_group(BACKENDS[kind])
            self.model = nn.parallel.DistributedDataParallel(
                self.plain, device_ids=None if kind == "cpu" else [self.device.index]
            )
        signal.signal(signal.SIGTERM, self.on_term)
        self.say(f"device={self.device} processes={self.world} batch={options.batch} lr={options.lr}")

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def on_term(self, _number, _frame):
        self.stopping = True

    def load(self, path):
        saved = torch.load(path, map_location="cpu", weights_only=True)
        self.plain.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.epoch, self.step = saved["epoch"], saved["step"]
        self.say(f"going on from {path}: epoch {self.epoch}, step {self.step}")

    def save(self):
        if self.rank == 0:
            save(self.plain, self.optimizer, self.epoch, self.step)

    def limit_reached(self):
        return bool(self.options.max_steps) and self.step >= self.options.max_steps

    def train_epoch(self, loader):
        """Average loss and images a second over one epoch."""
        self.model.train()
        total, seen, began = 0.0, 0, time.monotonic()
        for images, labels in loader:
            images, labels = images.to(self.device), labels.to(self.device)
            loss = nn.functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            total, seen = total + loss.item() * len(labels), seen + len(labels)
            if self.stopping:
                self.save()
                self.say(f"asked to stop: saved step {self.step}")
                sys.exit(128 + signal.SIGTERM)
            if self.limit_reached():
                break
        return total / seen, self.world * seen / (time.monotonic() - began)

    def run(self):
        images = Patterns(self.options.images)
        sampler = DistributedSampler(images, self.world, self.rank)
        loader = DataLoader(images, self.options.batch, sampler=sampler, drop_last=len(sampler) >= self.options.batch)
        loss = float("nan")
        while self.epoch < self.options.epochs and not self.limit_reached():
            sampler.set_epoch(self.epoch)
            loss, speed = self.train_epoch(loader)
            self.epoch += 1
            self.say(f"epoch={self.epoch} step={self.step} loss={loss:.4f} images_per_s={speed:.0f}")
            self.save()
        if self.rank == 0:
            Path("metrics.json").write_text(json.dumps({"loss": loss, "step": self.step, "epochs": self.epoch}) + "\n")
        if self.world > 1:
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    Trainer(arguments()).run()
