"""Which space to cluster in, and which score ranks clusterings, without labels: measured on sets with labels.

`python -m shoal_research.label_free` measures on the tuning sets and writes `shoal_research/results/label_free.json`,
from which docs/which_method.md, docs/number-of-clusters.md and research/docs/representations.md have tables. The rules
of `shoal.methods.auto` were chosen on these sets.
"""
