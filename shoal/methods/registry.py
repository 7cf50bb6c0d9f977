"""Methods by name."""

from __future__ import annotations

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
from shoal.methods.uifca.shared_trunk import SharedUIFCA
from shoal.methods.uifca.uifca import UIFCA

METHODS: dict[str, type[Method]] = {
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
        SharedUIFCA,
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
"""Every method by its name in `method.name`. Add a new one to this tuple."""
