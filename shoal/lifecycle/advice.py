"""Which method for a set: what was measured of it, and what follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from shoal.data.partition.table import Partition
from shoal.data.sets.prepared import Prepared
from shoal.engine.settings.run_settings import Settings
from shoal.lifecycle.choosing_method import choose_method
from shoal.lifecycle.preparing import prepare_data, prepare_partition, with_scheme
from shoal.methods.auto import SCRATCH_IMAGES

UNEVEN_RATIO = 5.0
"""Classes are called uneven from this ratio of the largest to the smallest on."""
SKEWED = 0.3
"""Clients are called unlike from this mean distance of their shares of classes on."""


@dataclass(frozen=True)
class Measured:
    """What advice follows from.

    Attributes:
        name, kind: of the set.
        shape: of one sample.
        samples: training samples of all clients.
        clients: number of clients.
        smallest, median, largest: training samples of a client.
        classes: number of classes; None without labels.
        ratio: largest class over smallest; None without labels.
        skew: mean over clients of half the summed distance between their shares of classes and the federation's, 0 to
            1; None without labels.
        gpu: whether torch sees a GPU here.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    samples: int
    clients: int
    smallest: int
    median: int
    largest: int
    classes: int | None
    ratio: float | None
    skew: float | None
    gpu: bool


@dataclass(frozen=True)
class Advice:
    """The answer to "which method?" for one set."""

    measured: Measured
    method: str
    command: str
    sentences: tuple[str, ...]


def advise(settings: Settings) -> Advice:
    """Return advice for the data set and the partition of some settings, whose method is auto.

    Raises:
        ShoalError: there is no such set, or it cannot be dealt to clients.
    """
    settings = with_scheme(settings)
    prepared = prepare_data(settings)
    _, table = prepare_partition(settings, prepared)
    choice = choose_method(settings, prepared, table)
    measured = measure(prepared, table)
    sentences = (
        choice.reason,
        *about_training(measured),
        *about_mixture(measured),
        *about_classes(measured),
        *about_sites(measured),
    )
    command = f"shoal run --set data.name={settings.data.name}"
    if measured.classes is None:
        command += " --set model.clusters=auto"
    return Advice(measured, choice.method, command, sentences)


def measure(prepared: Prepared, table: Partition) -> Measured:
    """Measure size and unevenness of a set that is dealt to clients."""
    counts = table.counts()
    spec = prepared.spec
    ratio = skew = None
    if spec.classes and prepared.train_y is not None:
        labels = np.asarray(prepared.train_y)[table.sample]
        shares = np.zeros((table.clients, spec.classes))
        np.add.at(shares, (table.client, labels), 1)
        whole = shares.sum(0)
        ratio = round(float(whole.max() / max(1, whole[whole > 0].min())), 1)
        own = shares / np.maximum(1, shares.sum(1, keepdims=True))
        skew = round(float(np.abs(own - whole / whole.sum()).sum(1).mean() / 2), 3)
    return Measured(
        name=spec.name,
        kind=spec.kind,
        shape=spec.shape,
        samples=int(counts.sum()),
        clients=table.clients,
        smallest=int(counts.min()),
        median=int(np.median(counts)),
        largest=int(counts.max()),
        classes=spec.classes,
        ratio=ratio,
        skew=skew,
        gpu=torch.cuda.is_available(),
    )


def about_training(measured: Measured) -> tuple[str, ...]:
    """Return what to expect of training an encoder on images."""
    if measured.kind != "image":
        return ()
    where = "on the GPU here" if measured.gpu else "on CPUs, which takes hours"
    if measured.median < SCRATCH_IMAGES:
        text = (
            f"Training an encoder from scratch is a risk: the median client holds {measured.median:,} images, and "
            f"{SCRATCH_IMAGES:,} are wanted. Compare its verdict with that of auto before you trust it."
        )
    else:
        text = (
            f"The median client holds {measured.median:,} images: an encoder of your own may be better. Train it "
            f"{where} with --set method.name=fedsimclr_kmeans, and compare verdicts (shoal compare)."
        )
    return (text,)


def about_mixture(measured: Measured) -> tuple[str, ...]:
    """Return when a mixture of Gaussians is worth a try."""
    if measured.kind not in ("vector", "series"):
        return ()
    return (
        "A mixture of Gaussians (--set method.name=fedgmm --set method.covariance=tied) finds stretched and uneven "
        "clusters that K-means cuts, and may do worse elsewhere: try both, and compare verdicts.",
    )


def about_classes(measured: Measured) -> tuple[str, ...]:
    """Return what labels say, or what to do without them."""
    if measured.classes is None:
        text = (
            "There are no labels: give the number of clusters in model.clusters, or leave it to model.clusters=auto; "
            "the verdict of a run then rests on neighbours, which rank clusterings and are no ACC."
        )
        return (text,)
    if measured.ratio is not None and measured.ratio >= UNEVEN_RATIO:
        text = (
            f"The largest class is {measured.ratio:g} times the smallest: with fedsimclr_kmeans set method.evenness=0, "
            "since it draws clusters towards one size."
        )
        return (text,)
    return ()


def about_sites(measured: Measured) -> tuple[str, ...]:
    """Return what the number and the unlikeness of clients call for."""
    if measured.clients == 1:
        return ("There is one client: nothing is federated, and scikit-learn finds the same clusters.",)
    sentences = []
    if measured.skew is not None and measured.skew >= SKEWED:
        sentences.append(
            f"Clients differ in their classes (skew {measured.skew:.2f} of 1). Federated K-means and mixtures find "
            "what they would find in pooled data; heads that clients train (fedcc, fedpnp) disagree, and lose."
        )
    if measured.kind != "text":
        sentences.append(
            "If the report says that clusters are sites, subtract each site's mean: --set method.centre_sites=true."
        )
    return tuple(sentences)


def described(measured: Measured) -> list[str]:
    """Return what was measured, a line each."""
    shape = " x ".join(str(size) for size in measured.shape)
    sizes = f"{measured.smallest:,} to {measured.largest:,} each (median {measured.median:,})"
    if measured.smallest == measured.largest:
        sizes = f"{measured.smallest:,} each"
    lines = [
        f"{measured.name}: {measured.samples:,} samples of kind {measured.kind} ({shape}) at {measured.clients:,} "
        f"clients, {sizes}"
    ]
    if measured.classes is None:
        lines.append("no labels")
    else:
        lines.append(
            f"{measured.classes} classes, the largest {measured.ratio:g} times the smallest; skew of clients "
            f"{measured.skew:.2f} (0: all alike, 1: no class in common)"
        )
    lines.append("a GPU is here" if measured.gpu else "no GPU is here")
    return lines
