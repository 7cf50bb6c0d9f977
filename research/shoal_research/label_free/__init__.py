"""Which space to cluster in, and which score ranks clusterings, without labels: measured on sets with labels.

`shoal_research/results/label_free.json` holds what was measured on the tuning sets. The code that drew and measured
them is `shoal_research.label_free.calibrate` of commit 2fc94a46. `python -m shoal_research.label_free` makes the tables
of docs/which_method.md and docs/number-of-clusters.md. The rules of `shoal.methods.auto` were chosen on these sets.
"""
