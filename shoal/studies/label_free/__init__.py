"""Which space to cluster in, and which score ranks clusterings, without labels: measured on sets with labels.

`python -m shoal.studies.label_free` measures on the tuning sets and writes `shoal/studies/results/label_free.json`,
from which `docs/which_method.md` has its tables. The rules of `shoal.methods.auto`
were chosen on these sets.
"""
