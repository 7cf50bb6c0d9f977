"""Which loss, rate and views train CF-CL's network above an untrained one and above raw pixels?

    python -m shoal_research.benchmarks.cfcl_control --device cuda --out results/cfcl_control.jsonl

One device holds all images, evenly, and exchanges nothing: what fails here can say nothing about exchange. The networks
of one family (a loss and its views) differ in rate, in margin or temperature, and in their seed; they train side by
side as groups of the same convolutions. Every network is judged by a linear classifier on its 64 features, fitted on
5,000 training images and tested on 5,000 test images. Seeds 101 and 102 serve no claim.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.data.sets.prepare import prepare
from shoal.data.views.augment import RECIPES, Recipe, augment, normalise
from shoal.engine.settings import places
from shoal.methods.training.local import seeded_build
from shoal.models.encoders import build_encoder

RATES = (1e-3, 3e-4, 1e-4)
SEEDS = (101, 102)
STOPS = (0, 250, 1000, 2000)
JUDGED = 5_000
"""Training images that a classifier learns from, and test images that it is tested on."""
CLASSES = 10
FEATURES = 64
FIT_STEPS = 400
FIT_RATE = 0.05
PENALTY = 3e-4
"""Of the squared weights of a classifier, half: chosen for 64 features."""
SAME = 1e9
"""Distance from a sample to itself, which is no negative."""

PAPER = Recipe(crop=(0.5, 1.0), flip=0.5, blur=0.5)
JITTERED = Recipe(crop=(0.5, 1.0), flip=0.5, blur=0.5, jitter=(0.4, 0.4, 0, 0), jitter_p=0.8)
NO_CROP = Recipe(flip=0.5, blur=0.5, jitter=(0.4, 0.4, 0, 0), jitter_p=0.8)

Loss = Callable[[Tensor, Tensor, Tensor, Tensor, torch.Generator], Tensor]
"""(first views, second views, both (m, n, d) unit vectors; labels (m, n); values (m,); draws) to the losses (m,)."""


def triplet(first: Tensor, second: Tensor, labels: Tensor, margin: Tensor, generator: torch.Generator) -> Tensor:
    """Return CF-CL's triplet loss (eq. 1) with the next sample of the batch as the negative."""
    return hinge(first, second, (first - first.roll(1, 1)).square().sum(2), margin)


def triplet_of_labels(
    first: Tensor, second: Tensor, labels: Tensor, margin: Tensor, generator: torch.Generator
) -> Tensor:
    """Return the triplet loss with a random sample of another class as the negative."""
    other = labels[:, :, None] != labels[:, None, :]
    drawn = torch.rand(other.shape, device=first.device, generator=generator) * other
    away = distances(first).gather(2, drawn.argmax(2, keepdim=True))
    return hinge(first, second, away[:, :, 0], margin)


def triplet_of_nearest(
    first: Tensor, second: Tensor, labels: Tensor, margin: Tensor, generator: torch.Generator
) -> Tensor:
    """Return the triplet loss with the nearest sample of the batch as the negative."""
    count = first.shape[1]
    away = distances(first) + SAME * torch.eye(count, device=first.device)
    return hinge(first, second, away.amin(2), margin)


def hinge(first: Tensor, second: Tensor, away: Tensor, margin: Tensor) -> Tensor:
    """Return the mean of max(0, distance of the views - distance of the negative + margin)."""
    return F.relu((first - second).square().sum(2) - away + margin[:, None]).mean(1)


def distances(x: Tensor) -> Tensor:
    """Return the squared distances among unit vectors (m, n, d): (m, n, n)."""
    return 2 - 2 * x @ x.transpose(1, 2)


def nt_xent(first: Tensor, second: Tensor, labels: Tensor, tau: Tensor, generator: torch.Generator) -> Tensor:
    """Return SimCLR's loss at temperatures tau."""
    both = torch.cat((first, second), 1)
    count = both.shape[1]
    similar = both @ both.transpose(1, 2) / tau[:, None, None] - SAME * torch.eye(count, device=both.device)
    partner = torch.arange(count, device=both.device).roll(count // 2).view(1, -1, 1).expand(len(both), -1, 1)
    return -similar.log_softmax(2).gather(2, partner).mean((1, 2))


def align_uniform(first: Tensor, second: Tensor, labels: Tensor, weight: Tensor, generator: torch.Generator) -> Tensor:
    """Return alignment plus weighted uniformity (t = 2) of both views."""
    apart = ~torch.eye(first.shape[1], dtype=torch.bool, device=first.device)
    spread = sum((-2 * distances(x)[:, apart]).exp().mean(1).log() for x in (first, second))
    return (first - second).square().sum(2).mean(1) + weight * spread / 2


@dataclass(frozen=True)
class Family:
    """Networks with one loss and one kind of views.

    Attributes:
        name: in tables.
        loss: of two views; None: cross-entropy of a linear classifier on the features, which the labels train.
        values: margins, temperatures or weights.
        recipe: of the views.
        batch: images of a step.
        images: that the device holds.
        raw_anchor: whether the first view is the image itself.
    """

    name: str
    loss: Loss | None
    values: tuple[float, ...]
    recipe: Recipe
    batch: int = 64
    images: int = 6_000
    raw_anchor: bool = False


MARGINS = (0.2, 1.0, 2.0)
TEMPERATURES = (0.3, 0.5, 1.0)
FAMILIES = (
    Family("triplet, the paper's views", triplet, MARGINS, PAPER, raw_anchor=True),
    Family("triplet, crops of .8 or more", triplet, MARGINS, Recipe(crop=(0.8, 1.0), flip=0.5), raw_anchor=True),
    Family("triplet, jitter", triplet, MARGINS, JITTERED, raw_anchor=True),
    Family("triplet, moved", triplet, MARGINS, RECIPES["moved"], raw_anchor=True),
    Family("triplet, jitter without crops", triplet, MARGINS, NO_CROP, raw_anchor=True),
    Family("triplet, jitter without crops, 20,000 images", triplet, MARGINS, NO_CROP, images=20_000, raw_anchor=True),
    Family("triplet, nearest negative", triplet_of_nearest, (0.1, 0.3, 1.0), PAPER, raw_anchor=True),
    Family("triplet, negatives of other classes", triplet_of_labels, MARGINS, PAPER, raw_anchor=True),
    Family("NT-Xent, the paper's views", nt_xent, TEMPERATURES, PAPER),
    Family("NT-Xent, moved", nt_xent, TEMPERATURES, RECIPES["moved"]),
    Family("NT-Xent, jitter without crops", nt_xent, TEMPERATURES, NO_CROP),
    Family("NT-Xent, jitter without crops, 20,000 images, batch 256", nt_xent, (0.5, 1.0, 2.0), NO_CROP, 256, 20_000),
    Family("alignment and uniformity, the paper's views", align_uniform, (0.5, 1.0, 2.0), PAPER),
    Family("alignment and uniformity, jitter without crops", align_uniform, (0.5, 1.0, 2.0), NO_CROP),
    Family("labels", None, (1.0,), PAPER, raw_anchor=True),
)


@dataclass(frozen=True)
class Images:
    """Images (n, 1, 28, 28) in [0, 1] and their labels (n,)."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


class Networks:
    """Networks of CF-CL (`pooled-conv`) side by side, with an Adam of its own rate for each.

    Args:
        family: of the networks.
        device: where they train.
    """

    def __init__(self, family: Family, device: torch.device) -> None:
        self.family = family
        self.settings = [(rate, value, seed) for rate in RATES for value in family.values for seed in SEEDS]
        self.count = len(self.settings)
        built = [seeded_build(lambda: build_encoder("pooled-conv", (1, 28, 28)), seed) for _, _, seed in self.settings]
        states = [list(network.state_dict().values()) for network in built]
        self.weights = [torch.stack(same).to(device) for same in zip(*states, strict=True)]
        if family.loss is None:
            self.weights += [torch.zeros(self.count, CLASSES, FEATURES, device=device)]
            self.weights += [torch.zeros(self.count, CLASSES, device=device)]
        for weight in self.weights:
            weight.requires_grad_()
        rates = torch.tensor([rate for rate, _, _ in self.settings], device=device)
        self.rates = [rates.view(-1, *[1] * (weight.dim() - 1)) for weight in self.weights]
        self.values = torch.tensor([value for _, value, _ in self.settings], device=device)
        self.means = [torch.zeros_like(weight) for weight in self.weights]
        self.squares = [torch.zeros_like(weight) for weight in self.weights]
        self.steps = 0

    def features(self, x: Tensor) -> Tensor:
        """Return features (m, n, 64) of images (m, n, 1, 28, 28)."""
        count = x.shape[1]
        conv, bias, conv_2, bias_2, hidden, hidden_bias, out, out_bias = self.weights[:8]
        h = normalise(x).transpose(0, 1).reshape(count, self.count, 28, 28)
        h = F.conv2d(h, conv.flatten(0, 1), bias.flatten(), padding=1, groups=self.count)
        h = F.relu(F.max_pool2d(h, 2))
        h = F.conv2d(h, conv_2.flatten(0, 1), bias_2.flatten(), padding=1, groups=self.count)
        h = F.relu(F.max_pool2d(h, 2)).reshape(count, self.count, -1).transpose(0, 1)
        h = F.relu(torch.baddbmm(hidden_bias[:, None], h, hidden.transpose(1, 2)))
        return torch.baddbmm(out_bias[:, None], h, out.transpose(1, 2))

    def step(self, data: Images, generator: torch.Generator) -> None:
        """Take one step of Adam on batches of their own."""
        family = self.family
        size = (self.count, family.batch)
        rows = torch.randint(
            min(family.images, len(data.train_x)), size, device=self.values.device, generator=generator
        )
        x = data.train_x[rows]
        labels = data.train_y[rows]
        view = augment(x.flatten(0, 1), family.recipe, generator).view_as(x)
        if family.loss is None:
            logits = torch.baddbmm(self.weights[9][:, None], self.features(view), self.weights[8].transpose(1, 2))
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(size).mean(1)
        else:
            first = x if family.raw_anchor else augment(x.flatten(0, 1), family.recipe, generator).view_as(x)
            unit = F.normalize(self.features(torch.cat((first, view), 1)), dim=2)
            loss = family.loss(*unit.chunk(2, 1), labels, self.values, generator)
        self.update(torch.autograd.grad(loss.sum(), self.weights))

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor]) -> None:
        """Move the weights by Adam (0.9, 0.999)."""
        self.steps += 1
        for weight, mean, square, gradient, rate in zip(
            self.weights, self.means, self.squares, gradients, self.rates, strict=True
        ):
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            scale = (square / (1 - 0.999**self.steps)).sqrt_().add_(1e-8)
            weight -= rate * (mean / (1 - 0.9**self.steps)) / scale

    @torch.no_grad()
    def judged(self, data: Images) -> list[float]:
        """Return the accuracy of a linear classifier on the unit features of each network."""

        def unit(x: Tensor) -> Tensor:
            parts = [self.features(part.expand(self.count, *part.shape)) for part in x.split(500)]
            return F.normalize(torch.cat(parts, 1), dim=2)

        fitted = fit_accuracy(unit(data.train_x[:JUDGED]), data.train_y[:JUDGED], unit(data.test_x), data.test_y)
        return [round(float(value), 4) for value in fitted]


@torch.no_grad()
def fit_accuracy(x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor) -> Tensor:
    """Return the test accuracies (m,) of multinomial logistic regressions on standardised features (m, n, d).

    All are fitted at once by Adam; on 64 features they agree with `linear_probe` within .001.
    """
    mean = x.mean(1, keepdim=True)
    deviation = x.std(1, keepdim=True).clamp_min(1e-6)
    x = (x - mean) / deviation
    weights = [x.new_zeros(len(x), x.shape[2], CLASSES), x.new_zeros(len(x), 1, CLASSES)]
    means = [torch.zeros_like(weight) for weight in weights]
    squares = [torch.zeros_like(weight) for weight in weights]
    truth = F.one_hot(y, CLASSES).float()
    for step in range(1, FIT_STEPS + 1):
        error = ((x @ weights[0] + weights[1]).softmax(2) - truth) / x.shape[1]
        gradients = (x.transpose(1, 2) @ error + PENALTY * weights[0], error.sum(1, keepdim=True))
        rate = FIT_RATE * min(1.0, 2 * (1 - step / FIT_STEPS) + 0.02)
        for weight, gradient, average, square in zip(weights, gradients, means, squares, strict=True):
            average.lerp_(gradient, 0.1)
            square.lerp_(gradient * gradient, 0.01)
            weight -= rate * (average / (1 - 0.9**step)) / ((square / (1 - 0.99**step)).sqrt() + 1e-8)
    scores = (test_x - mean) / deviation @ weights[0] + weights[1]
    return (scores.argmax(2) == test_y).float().mean(1)


def fashion(device: torch.device) -> Images:
    """Return 20,000 training and 5,000 test images of Fashion-MNIST."""
    prepared = prepare("fashion-mnist", places.store(), mirror=places.mirror())
    assert prepared.train_y is not None
    assert prepared.test_y is not None
    order = np.random.default_rng(12345).permutation(len(prepared.train_x))[:20_000]

    def on_device(x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(np.array(x)).to(device).float() / 255
        return images.view(-1, 1, 28, 28), torch.from_numpy(np.array(y)).to(device).long()

    train = on_device(np.asarray(prepared.train_x)[order], np.asarray(prepared.train_y)[order])
    test = on_device(np.asarray(prepared.test_x)[:JUDGED], np.asarray(prepared.test_y)[:JUDGED])
    return Images(*train, *test)


def measure(family: Family, data: Images, stops: Sequence[int]) -> dict[str, Any]:
    """Train a family; return its settings and the accuracies of its networks at some steps."""
    began = time.perf_counter()
    device = data.train_x.device
    networks = Networks(family, device)
    generator = torch.Generator(device).manual_seed(7)
    curve = {}
    for stop in stops:
        while networks.steps < stop:
            networks.step(data, generator)
        curve[stop] = networks.judged(data)
    seconds = round(time.perf_counter() - began, 1)
    return {"family": family.name, "models": networks.settings, "curve": curve, "seconds": seconds}


def table(measured: Sequence[dict[str, Any]]) -> str:
    """Return for each family its best setting after the last step, in Markdown: means over seeds."""
    curves = [{int(step): values for step, values in one["curve"].items()} for one in measured]
    untrained = " or ".join(dict.fromkeys(f"{np.mean(curve[0]):.3f}" for curve in curves))
    lines = [f"| loss and views | margin, temperature or weight | rate | steps | trained (untrained: {untrained}) |"]
    lines.append("|---|---:|---:|---:|---:|")
    for one, curve in zip(measured, curves, strict=True):
        last = max(curve)
        ends: dict[tuple[float, float], list[float]] = {}
        for (rate, value, _), end in zip(one["models"], curve[last], strict=True):
            ends.setdefault((rate, value), []).append(end)
        rate, value = max(ends, key=lambda setting: float(np.mean(ends[setting])))
        trained = np.mean(ends[rate, value])
        lines.append(f"| {one['family']} | {value:g} | {rate:g} | {last:,} | {trained:.3f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all families, or some; a line of JSON each, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--families", type=int, nargs="*", help="numbers, from 0; by default all")
    parser.add_argument("--steps", type=int, default=STOPS[-1])
    parser.add_argument("--out", type=Path, help="a file that gets a line for each family")
    given = parser.parse_args(arguments)
    data = fashion(torch.device(given.device))
    stops = [stop for stop in STOPS if stop < given.steps] + [given.steps]
    measured = []
    for number in given.families or range(len(FAMILIES)):
        measured.append(measure(FAMILIES[number], data, stops))
        if given.out:
            with given.out.open("a") as file:
                file.write(json.dumps(measured[-1]) + "\n")
    print(table(measured))


if __name__ == "__main__":
    main()
