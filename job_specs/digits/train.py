"""Train a small neural network on scikit-learn's handwritten digits, in numpy.

It shows what a script needs to do to be a good job, and none of it is special to jobrunner:

* print a line per epoch, so that there is something to follow and to read numbers from;
* save checkpoints aside and rename them, so that a half-written file never has the final name;
* go on from JOBRUNNER_RESUME_FROM when that is set;
* save once more when asked to stop (SIGTERM), within the job's grace time.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

CLASSES = 10
CHECKPOINTS = Path("ckpt")


class StopFlag:
    """Becomes true once SIGTERM has arrived; the loop looks at it between two steps."""

    def __init__(self):
        self.set = False
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, _number, _frame):
        self.set = True


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=128, help="units in the hidden layer")
    parser.add_argument("--batch", type=int, default=64, help="images a step")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of rest after each step (to watch it)")
    return parser.parse_args()


def data(seed):
    """Images scaled to 0..1 and labels: 80 % to train on, 20 % to judge by."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(images))
    images, labels = (images[order] / 16.0).astype(np.float32), labels[order]
    cut = int(len(images) * 0.8)
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def new_weights(inputs, hidden, seed):
    rng = np.random.default_rng(seed)
    return {
        "w1": (rng.standard_normal((inputs, hidden)) * np.sqrt(2 / inputs)).astype(np.float32),
        "b1": np.zeros(hidden, np.float32),
        "w2": (rng.standard_normal((hidden, CLASSES)) * np.sqrt(2 / hidden)).astype(np.float32),
        "b2": np.zeros(CLASSES, np.float32),
    }


def forward(weights, images):
    """Hidden activations and class probabilities."""
    hidden = np.maximum(images @ weights["w1"] + weights["b1"], 0)
    scores = hidden @ weights["w2"] + weights["b2"]
    scores -= scores.max(axis=1, keepdims=True)
    powers = np.exp(scores)
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def cross_entropy(probabilities, labels):
    return float(-np.log(probabilities[np.arange(len(labels)), labels] + 1e-9).mean())


def train_step(weights, speeds, images, labels, lr, momentum):
    """One step of gradient descent with momentum, in place; returns the batch's loss."""
    hidden, probabilities = forward(weights, images)
    loss = cross_entropy(probabilities, labels)
    slope = probabilities
    slope[np.arange(len(labels)), labels] -= 1
    slope /= len(labels)
    back = (slope @ weights["w2"].T) * (hidden > 0)
    gradients = {"w1": images.T @ back, "b1": back.sum(0), "w2": hidden.T @ slope, "b2": slope.sum(0)}
    for name, gradient in gradients.items():
        speeds[name] = momentum * speeds[name] - lr * gradient
        weights[name] += speeds[name]
    return loss


def evaluate(weights, images, labels):
    _, probabilities = forward(weights, images)
    return cross_entropy(probabilities, labels), float((probabilities.argmax(1) == labels).mean())


def save(weights, speeds, epoch, step):
    """Write aside, flush to the disk, rename: whoever sees the final name sees a whole file."""
    CHECKPOINTS.mkdir(exist_ok=True)
    final = CHECKPOINTS / f"step-{step:06d}.npz"
    aside = CHECKPOINTS / f".{final.name}.part"
    with open(aside, "wb") as out:
        np.savez(out, epoch=epoch, step=step, **weights, **{"speed_" + name: v for name, v in speeds.items()})
        out.flush()
        os.fsync(out.fileno())
    os.replace(aside, final)


def load(path):
    with np.load(path) as saved:
        weights = {name: saved[name] for name in ("w1", "b1", "w2", "b2")}
        speeds = {name: saved["speed_" + name] for name in weights}
        return weights, speeds, int(saved["epoch"]), int(saved["step"])


def stop_here(weights, speeds, epoch, step):
    """Keep what has been learned and end as a process ends that SIGTERM has stopped."""
    save(weights, speeds, epoch, step)
    print(f"asked to stop: saved step {step}", flush=True)
    sys.exit(128 + signal.SIGTERM)


def start(options, inputs):
    """Weights, speeds, finished epochs and steps: from the checkpoint to resume from, else new ones."""
    resume_from = os.environ.get("JOBRUNNER_RESUME_FROM")
    if resume_from:
        weights, speeds, epoch, step = load(resume_from)
        print(f"going on from {resume_from}: epoch {epoch}, step {step}", flush=True)
        return weights, speeds, epoch, step
    weights = new_weights(inputs, options.hidden, options.seed)
    return weights, {name: np.zeros_like(value) for name, value in weights.items()}, 0, 0


def train(options):
    stop = StopFlag()
    (images, labels), held_out = data(options.seed)
    weights, speeds, done, step = start(options, images.shape[1])
    val_loss, val_acc = evaluate(weights, *held_out)
    for epoch in range(done + 1, options.epochs + 1):
        order = np.random.default_rng((options.seed, epoch)).permutation(len(images))
        losses = []
        for first in range(0, len(order), options.batch):
            picked = order[first : first + options.batch]
            losses.append(train_step(weights, speeds, images[picked], labels[picked], options.lr, options.momentum))
            step += 1
            time.sleep(options.pace)
            if stop.set:
                stop_here(weights, speeds, epoch - 1, step)  # this epoch is not finished: it is done again
        val_loss, val_acc = evaluate(weights, *held_out)
        loss = sum(losses) / len(losses)
        print(f"epoch={epoch} step={step} loss={loss:.4f} val_loss={val_loss:.4f} val_acc={val_acc:.4f}", flush=True)
        save(weights, speeds, epoch, step)
    return {"epochs": options.epochs, "step": step, "val_loss": round(val_loss, 6), "val_acc": round(val_acc, 6)}


def main():
    options = arguments()
    cards = os.environ.get("JOBRUNNER_CARDS", "")
    print(
        f"job={os.environ.get('JOBRUNNER_JOB_ID', '-')} attempt={os.environ.get('JOBRUNNER_ATTEMPT', '-')} "
        f"cards={cards or '-'} lr={options.lr} epochs={options.epochs}",
        flush=True,
    )
    metrics = train(options)
    Path("metrics.json").write_text(json.dumps(metrics) + "\n")
    print(f"done: val_acc={metrics['val_acc']:.4f}", flush=True)


if __name__ == "__main__":
    main()
