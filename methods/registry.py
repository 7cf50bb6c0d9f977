"""Methods by name."""

from __future__ import annotations

from methods.base import Method
from methods.cfcl.cfcl import CFCL
from methods.cfl.cfl import CFL
from methods.cfl.fedavg import FedAvg
from methods.cfl.ifca import IFCA
from methods.cfl.local_only import Alone
from methods.fedpnp.fedbyolcc import FedBYOLCC
from methods.fedpnp.fedcc import FedCC
from methods.fedpnp.fedpnp import FedPNP
from methods.fedpnp.ncc import NCC
from methods.fedpnp.pixels import KMeansPixels
from methods.fedpnp.single import Single
from methods.ssd.fedbyol import FedBYOL
from methods.ssd.fedema import FedEMA
from methods.ssd.fedsimclr import FedSimCLR
from methods.ssd.fedsimclr_kmeans import FedSimCLRKMeans
from methods.ssd.fedsimclr_pool import FedSimCLRPool
from methods.ssd.ssd import SSD
from methods.uifca.clustergan import ClusterGAN
from methods.uifca.ifca_flows import IFCAFlows
from methods.uifca.kfed import KFed
from methods.uifca.shared_trunk import SharedUIFCA
from methods.uifca.uifca import UIFCA

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        FedPNP,
        FedCC,
        FedBYOLCC,
        Single,
        NCC,
        KMeansPixels,
        CFCL,
        SSD,
        FedSimCLR,
        FedSimCLRKMeans,
        FedSimCLRPool,
        FedBYOL,
        FedEMA,
        CFL,
        FedAvg,
        IFCA,
        Alone,
        UIFCA,
        SharedUIFCA,
        KFed,
        IFCAFlows,
        ClusterGAN,
    )
}
"""Every method that `method.name` may say. A new one is added to this tuple."""
DEFAULT = FedPNP.name
"""The method of settings that name none."""
