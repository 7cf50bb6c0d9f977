"""What noise costs: ACC of FedKMeans and FedGMM by epsilon, and the rows that a server still reads.

Sets are those that the rules for method auto were chosen on, dealt evenly to six clients; images are encoded by the
packaged encoder, or are pixels.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.data.intake.options import AddOptions
from shoal.data.intake.own import add
from shoal.data.sets.prepare import own_sets
from shoal.engine.rounds.privacy import epsilon, rho
from shoal.engine.settings import places
from shoal.engine.settings.merge import merge
from shoal.engine.settings.run_settings import make_settings
from shoal.engine.store.opened_run import OpenedRun
from shoal.lifecycle.starting import new_run
from shoal.methods.contract.base import Server
from shoal.methods.scores.clustering import clustering_accuracy
from shoal.review.served.server_view import ServerView, played
from shoal_research.kept import RESULTS
from shoal_research.label_free.tuning_sets import TABLES
from shoal_research.server_reads.measure import BASE
