"""A nightly retraining: go on from the model that is kept, with the images that came in since; say how good it is now.

It uses train.py's network. What "came in" is a draw of the training images that differs from night to night; all
nights are judged by the same images, which none of them trains on, so that their val_acc can be compared.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import train


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kept", type=Path, help="folder of the model to go on from; none is there the first time")
    parser.add_argument("--images", type=int, default=300, help="so many came in")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=128, help="units in the hidden layer")
    parser.add_argument("--batch", type=int, default=32, help="images a step")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of rest after each step (to watch it)")
    return parser.parse_args()


def came_in(images, labels, count):
    """Tonight's draw: another one for each job."""
    job = os.environ.get("JOBRUNNER_JOB_ID", "by hand")
    chosen = np.random.default_rng(list(job.encode())).choice(len(images), size=count, replace=False)
    return images[chosen], labels[chosen]


def start(options, inputs):
    """The weights of the kept model, else new ones."""
    models = sorted(options.kept.expanduser().glob("*.npz")) if options.kept else []
    if not models:
        print("no model is kept yet: beginning anew", flush=True)
        return train.new_weights(inputs, options.hidden, seed=0)
    weights, _, _, step = train.load(models[-1])
    print(f"going on from {models[-1]} (step {step})", flush=True)
    return weights


def main():
    options = arguments()
    stop = train.StopFlag()
    (images, labels), held_out = train.data(seed=0)
    images, labels = came_in(images, labels, options.images)
    weights = start(options, images.shape[1])
    speeds = {name: np.zeros_like(value) for name, value in weights.items()}
    step = 0
    val_loss, val_acc = train.evaluate(weights, *held_out)
    print(f"before: val_loss={val_loss:.4f} accuracy {val_acc:.4f}", flush=True)
    for epoch in range(1, options.epochs + 1):
        order = np.random.default_rng(epoch).permutation(len(images))
        losses = []
        for first in range(0, len(order), options.batch):
            picked = order[first : first + options.batch]
            losses.append(train.train_step(weights, speeds, images[picked], labels[picked], options.lr, 0.9))
            step += 1
            time.sleep(options.pace)
            if stop.set:
                train.stop_here(weights, speeds, epoch - 1, step)
        val_loss, val_acc = train.evaluate(weights, *held_out)
        loss = sum(losses) / len(losses)
        print(f"epoch={epoch} step={step} loss={loss:.4f} val_loss={val_loss:.4f} val_acc={val_acc:.4f}", flush=True)
        train.save(weights, speeds, epoch, step)
    Path("metrics.json").write_text(json.dumps({"val_loss": round(val_loss, 6), "val_acc": round(val_acc, 6)}) + "\n")


if __name__ == "__main__":
    main()
