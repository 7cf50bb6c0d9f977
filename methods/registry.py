"""Methods by name."""

from __future__ import annotations

from methods.alone import Alone
from methods.base import Method
from methods.cfcl import CFCL
from methods.cfl import CFL
from methods.clustergan import ClusterGAN
from methods.fedavg import FedAvg
from methods.fedbyol import FedBYOL
from methods.fedbyolcc import FedBYOLCC
from methods.fedcc import FedCC
from methods.fedema import FedEMA
from methods.fedpnp import FedPNP
from methods.fedsimclr import FedSimCLR
from methods.ifca import IFCA
from methods.ifca_flows import IFCAFlows
from methods.kfed import KFed
from methods.kmeans import KMeansPixels
from methods.ncc import NCC
from methods.single import Single
from methods.ssd import SSD
from methods.uifca import UIFCA

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
        FedBYOL,
        FedEMA,
        CFL,
        FedAvg,
        IFCA,
        Alone,
        UIFCA,
        KFed,
        IFCAFlows,
        ClusterGAN,
    )
}
"""Every method that `method.name` may say. A new one is added to this tuple."""
