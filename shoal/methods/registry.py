"""Methods by name: the built-in ones, and those of other packages, by the group of entry points `shoal.methods`."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from shoal.methods.cfcl.cfcl import CFCL
from shoal.methods.cfl.cfl import CFL
from shoal.methods.cfl.fedavg import FedAvg
from shoal.methods.cfl.ifca import IFCA
from shoal.methods.cfl.local_only import LocalOnly
from shoal.methods.contract.base import Method
from shoal.methods.features.fedgmm import FedGMM
from shoal.methods.features.fedkmeans import FedKMeans
from shoal.methods.fedpnp.fedbyolcc import FedBYOLCC
from shoal.methods.fedpnp.fedcc import FedCC
from shoal.methods.fedpnp.fedpnp import FedPNP
from shoal.methods.fedpnp.ncc import NCC
from shoal.methods.fedpnp.pixels import KMeansPixels
from shoal.methods.fedpnp.single import Single
from shoal.methods.ssd.fedbyol import FedBYOL
from shoal.methods.ssd.fedema import FedEMA
from shoal.methods.ssd.fedsimclr import FedSimCLR
from shoal.methods.ssd.fedsimclr_kmeans import FedSimCLRKMeans
from shoal.methods.ssd.fedu2 import FedU2
from shoal.methods.ssd.fedx import FedX
from shoal.methods.ssd.ssd import SSD
from shoal.methods.uifca.clustergan import ClusterGAN
from shoal.methods.uifca.ifca_flows import IFCAFlows
from shoal.methods.uifca.kfed import KFed
from shoal.methods.uifca.uifca import UIFCA

BUILT_IN: dict[str, type[Method]] = {
    method.name: method
    for method in (
        FedKMeans,
        FedGMM,
        KFed,
        FedSimCLRKMeans,
        FedCC,
        FedPNP,
        FedBYOLCC,
        UIFCA,
        IFCAFlows,
        ClusterGAN,
        FedSimCLR,
        SSD,
        FedBYOL,
        FedEMA,
        FedX,
        FedU2,
        CFCL,
        FedAvg,
        CFL,
        IFCA,
        LocalOnly,
        KMeansPixels,
        Single,
        NCC,
    )
}
"""Methods by their name in `method.name`; pages and tests are made from these alone."""
GROUP = "shoal.methods"


class Plugins(NamedTuple):
    """What other packages add.

    Attributes:
        methods: by name.
        packages: the name and version of the package of each.
        broken: why a method cannot be used, by the name of its entry point.
    """

    methods: dict[str, type[Method]]
    packages: dict[str, tuple[str, str]]
    broken: dict[str, str]


def added_methods(entries: Iterable[EntryPoint]) -> Plugins:
    """Return the methods that entry points name; one that cannot be imported leaves the others as they are."""
    added = Plugins({}, {}, {})
    for entry in entries:
        try:
            method = entry.load()
        except Exception as error:  # the code of a stranger
            added.broken[entry.name] = f"{type(error).__name__}: {error}"
            continue
        name = getattr(method, "name", None)
        if not (isinstance(method, type) and issubclass(method, Method)) or name != entry.name:
            added.broken[entry.name] = f"{entry.value} is no method of the name {entry.name}"
        elif name in BUILT_IN or name in added.methods:
            added.broken[f"{entry.name} of {entry.value}"] = "another method has this name"
        else:
            added.methods[name] = method
            added.packages[name] = (entry.dist.name, entry.dist.version) if entry.dist else (entry.module, "unknown")
    return added


ADDED = added_methods(entry_points(group=GROUP))
METHODS: dict[str, type[Method]] = {**BUILT_IN, **ADDED.methods}
"""Every method that can be run."""
