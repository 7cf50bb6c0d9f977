"""The settings of each partition scheme; `make_partition` in data/partition/make.py applies them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from shoal.core.setting import setting


@dataclass(frozen=True)
class PartitionSettings:
    """The settings of every scheme: clients, and a validation split."""

    kind: str = ""
    clients: int = setting(5, "number of clients", ge=1)
    validation: float = setting(
        0.0, "share of each client's samples that is held out as its validation split", ge=0, lt=1
    )


@dataclass(frozen=True)
class IID(PartitionSettings):
    """The same number of samples of every class for each client; without labels, a random even split."""

    kind: Literal["iid"] = "iid"


@dataclass(frozen=True)
class Dirichlet(PartitionSettings):
    """Each class goes to the clients in proportions drawn from Dirichlet(beta, ..., beta).

    Source: Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, 2019; proportions drawn per class as in Yurochkin et al., 2019.
    """

    kind: Literal["dirichlet"] = "dirichlet"

    beta: float = setting(
        0.5,
        "concentration of the Dirichlet distribution: small values give heterogeneous clients, large values even ones",
        gt=0,
    )
    minimum: int = setting(
        10, "minimum number of samples of each client: proportions are drawn again until every client has them", ge=2
    )


@dataclass(frozen=True)
class LabelsPerClient(PartitionSettings):
    """Each client holds samples of a few labels only; a label's samples are split evenly among its holders."""

    kind: Literal["labels_per_client"] = "labels_per_client"

    labels: int = setting(2, "number of different labels that each client holds", ge=1)


@dataclass(frozen=True)
class Majority(PartitionSettings):
    """The first floor(p n_k) samples of client k come from one cluster of its own, the rest from what remains.

    The cluster of client k is label k modulo the number of labels. Source: the heterogeneity p of UIFCA.
    """

    kind: Literal["majority"] = "majority"

    p: float = setting(0.5, "heterogeneity p: share of a client's samples that come from its own cluster", ge=0, le=1)


@dataclass(frozen=True)
class ByColumn(PartitionSettings):
    """The natural clients of the data, recorded in a column of the prepared set."""

    kind: Literal["by_column"] = "by_column"

    clients: int = setting(0, "number of clients, drawn at random from those in the column; 0: all of them", ge=0)
    column: str = setting("client", "column of the prepared data set that names the client of each sample")


SCHEMES: dict[str, type[PartitionSettings]] = {
    scheme.kind: scheme for scheme in (IID, Dirichlet, LabelsPerClient, Majority, ByColumn)
}


@dataclass(frozen=True)
class Auto(PartitionSettings):
    """The natural clients of the data where the set names some, else iid; a run records which scheme that was."""

    kind: Literal["auto"] = "auto"

    clients: int | None = setting(  # type: ignore[assignment]
        None, "number of clients; none: all clients that the data set names, or 5 where it names none", ge=1
    )


def settle(auto: Auto, own_clients: bool) -> PartitionSettings:
    """Return the scheme that `auto` means for a data set.

    Args:
        auto: the settings of the partition.
        own_clients: whether the data set names its clients.

    >>> settle(Auto(clients=3), own_clients=False)
    IID(kind='iid', clients=3, validation=0.0)
    >>> settle(Auto(), own_clients=True).kind
    'by_column'
    """
    values = {each.name: getattr(auto, each.name) for each in fields(auto) if each.name != "kind"}
    if auto.clients is None:
        del values["clients"]  # each scheme has its own default
    return ByColumn(**values) if own_clients else IID(**values)
