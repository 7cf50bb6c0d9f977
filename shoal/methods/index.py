"""The methods by the question that each answers, with names for people: `shoal methods` and docs/methods.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A method in the index.

    Attributes:
        key: its name in `method.name`.
        name: what people call it.
        about: what it does, in a sentence.
    """

    key: str
    name: str
    about: str


@dataclass(frozen=True)
class Question:
    """A question of a user, and the methods that answer it.

    Attributes:
        text: the question.
        entries: the methods, the first to try at the top.
    """

    text: str
    entries: tuple[Entry, ...]


QUESTIONS = (
    Question(
        "Which clusters are in my vectors, tables, windows, or in images seen through a frozen encoder?",
        (
            Entry("fedkmeans", "federated K-means", "K-means over all clients, from sums and counts; takes seconds."),
            Entry("fedgmm", "federated mixture of Gaussians", "Clusters of different shapes and sizes, by EM."),
            Entry("kfed", "k-FED", "Clusters in one round, from the local centres of the clients."),
        ),
    ),
    Question(
        "Which clusters are in my images, with a network that the clients train together?",
        (
            Entry(
                "fedsimclr_kmeans",
                "FedSimCLR, then federated K-means",
                "Trains an encoder, then clusters its features over all clients.",
            ),
            Entry("fedcc", "federated contrastive clustering (FedCC)", "Trains an encoder and a cluster head at once."),
            Entry("fedpnp", "FedPNP", "FedCC that leaves likely members of the same cluster out of the negatives."),
            Entry("fedbyolcc", "FedBYOLCC", "A cluster head on BYOL, which needs no negatives."),
        ),
    ),
    Question(
        "Which generative models explain my data, one for each cluster?",
        (
            Entry("uifca", "UIFCA", "A normalising flow for each cluster; a sample belongs to the likeliest."),
            Entry(
                "uifca_shared", "UIFCA with one trunk", "The clusters share one flow and differ in its latent space."
            ),
            Entry("ifca_flows", "IFCA with flows", "A flow for each cluster of clients, instead of samples."),
            Entry("clustergan", "federated ClusterGAN", "A generator and an encoder of clusters that play a game."),
        ),
    ),
    Question(
        "Which features describe my unlabelled samples?",
        (
            Entry("fedsimclr", "FedSimCLR", "Contrast of two views, averaged over clients; the first to try."),
            Entry("ssd", "SSD", "Alignment and uniformity, with parts of the features for each client."),
            Entry("fedbyol", "FedBYOL", "Two views and a momentum target, without negatives."),
            Entry("fedema", "FedEMA", "FedBYOL whose clients keep a part of their own model."),
            Entry("fedx", "FedX", "Contrast and relations of views, learned from the global model too."),
            Entry("fedu2", "FedU2", "FedSimCLR with features spread over the sphere, and a step towards all clients."),
            Entry("cfcl", "CF-CL", "Devices exchange a few samples with their neighbours, and contrast with them."),
        ),
    ),
    Question(
        "I have labels. Which clients belong together, and what does each gain?",
        (
            Entry("fedavg", "federated averaging (FedAvg)", "One model for all clients."),
            Entry("cfl", "clustered federated learning (CFL)", "Splits clients whose updates disagree."),
            Entry("ifca", "IFCA", "Several models; each client trains the one that fits it best."),
            Entry("local_only", "local training", "Each client trains alone: what federation must beat."),
        ),
    ),
    Question(
        "What must a federation beat?",
        (
            Entry("kmeans", "K-means on pooled samples", "All data in one place, no training."),
            Entry("single", "Single-training", "SimCLR on each client alone."),
            Entry("ncc", "NCC, centralised", "A strong clustering method with all data in one place."),
        ),
    ),
)
"""The questions, in the order of the index. Every method stands under one of them."""


def name_of_method(key: str) -> str:
    """Return what people call a method; the key of one that is not in the index.

    >>> name_of_method("fedkmeans"), name_of_method("mine")
    ('federated K-means', 'mine')
    """
    for question in QUESTIONS:
        for entry in question.entries:
            if entry.key == key:
                return entry.name
    return key
