"""What noise costs: ACC of FedKMeans and FedGMM by epsilon, and the rows that a server still reads.

Sets are those that the rules for method auto were chosen on, dealt evenly to six clients; images are encoded by the
packaged encoder, or are pixels.
"""

from __future__ import annotations
