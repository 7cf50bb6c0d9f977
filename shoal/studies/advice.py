"""Which method for a set: what was measured of it, what follows, and the row of a table that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from shoal.data.partition.table import Partition
from shoal.data.prepared import Prepared
from shoal.engine.settings.run_settings import Settings
from shoal.lifecycle.choosing_method import choose_method
from shoal.lifecycle.preparing import prepare_data, prepare_partition, with_scheme
from shoal.methods.auto import SCRATCH_IMAGES
from shoal.studies.evidence import kept_sentence, nearest_row, tuning_figures, tuning_rows, unseen_rows

UNEVEN_RATIO = 5.0
"""Classes are called uneven from this ratio of the largest to the smallest on."""
UNEVEN_CLIENTS = "uneven-clients"
TRAINED = ("pixels", "fedcc", "fedsimclr_kmeans")
"""A kept study of training from scratch, and rows of it."""
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
class Sentence:
    """A piece of advice, and the row that it rests on; empty where it rests on measurements alone."""

    text: str
    row: str = ""


@dataclass(frozen=True)
class Advice:
    """The answer to "which method?" for one set."""

    measured: Measured
    method: str
    command: str
    sentences: tuple[Sentence, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the advice as JSON."""
        return asdict(self)


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
        Sentence(choice.reason, evidence(measured)),
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


def evidence(measured: Measured) -> str:
    """Return the row of the most similar set: an unseen one where that study is kept, else a tuning set."""
    unseen = unseen_rows()
    if unseen is not None:
        row = nearest_row(unseen, measured.kind, measured.samples, measured.classes)
        if row is not None:
            return f"{row.sentence()} [unseen set]"
    row = nearest_row(tuning_rows(), measured.kind, measured.samples, measured.classes)
    if row is None:
        return ""
    if unseen is None:
        caveat = "the rule was chosen on this set; no study of unseen sets is kept here yet"
    else:
        caveat = "the rule was chosen on this set; no unseen set is of this kind"
    return f"{row.sentence()} [{caveat}]"


def about_training(measured: Measured) -> tuple[Sentence, ...]:
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
    return (Sentence(text, kept_sentence(UNEVEN_CLIENTS, "digits_0_1", TRAINED)),)


def about_mixture(measured: Measured) -> tuple[Sentence, ...]:
    """Return when a mixture of Gaussians is worth a try, with the tuning sets where it is ahead and behind."""
    if measured.kind not in ("vector", "series"):
        return ()
    tables = tuning_figures()["tables"]
    rows = {row.set: row for row in tuning_rows() if row.kind == "vector"}
    sets_above = [name for name, each in tables.items() if each["mixture"] > rows[name].acc + 0.02]
    sets_below = [name for name, each in tables.items() if each["mixture"] < rows[name].acc - 0.02]
    text = (
        "A mixture of Gaussians (--set method.name=fedgmm --set method.covariance=tied) finds stretched and uneven "
        "clusters that K-means cuts, and may do worse elsewhere: try both, and compare verdicts."
    )
    row = (
        f"of {len(tables)} tables it is ahead on {in_words(sets_above)}, and behind on {in_words(sets_below) or 'none'}"
    )
    return (Sentence(text, row),)


def in_words(sets: Sequence[str]) -> str:
    """Return names of data sets in a row; what follows a comma in a name stands in brackets.

    >>> in_words(["iris", "iris, uneven"])
    'iris, iris (uneven)'
    """
    parts = [name.partition(", ") for name in sets]
    return ", ".join(f"{name} ({variant})" if variant else name for name, _, variant in parts)


def about_classes(measured: Measured) -> tuple[Sentence, ...]:
    """Return what labels say, or what to do without them."""
    if measured.classes is None:
        text = (
            "There are no labels: give the number of clusters in model.clusters, or leave it to model.clusters=auto; "
            "the verdict of a run then rests on neighbours, which rank clusterings and are no ACC."
        )
        return (Sentence(text),)
    if measured.ratio is not None and measured.ratio >= UNEVEN_RATIO:
        text = (
            f"The largest class is {measured.ratio:g} times the smallest: leave method.evenness at 0, since it draws "
            "clusters towards one size."
        )
        return (Sentence(text),)
    return ()


def about_sites(measured: Measured) -> tuple[Sentence, ...]:
    """Return what the number and the unlikeness of clients call for."""
    if measured.clients == 1:
        return (Sentence("There is one client: nothing is federated, and scikit-learn finds the same clusters."),)
    found = []
    if measured.skew is not None and measured.skew >= SKEWED:
        text = (
            f"Clients differ in their classes (skew {measured.skew:.2f} of 1). Federated K-means and mixtures find "
            "what they would find in pooled data; heads that clients train (fedcc, fedpnp) disagree, and lose."
        )
        found.append(Sentence(text, kept_sentence(UNEVEN_CLIENTS, "mnist_0_1", TRAINED)))
    if measured.kind != "text":
        text = "If the report says that clusters are sites, subtract each site's mean: --set method.centre_sites=true."
        found.append(Sentence(text))
    return tuple(found)
