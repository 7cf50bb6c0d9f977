"""Which space to cluster in, and when by landmarks, without labels: measured on sets with labels.

`python -m shoal_research.label_free` measures on the tuning sets and writes `shoal_research/results/label_free.json`,
from which docs/which_method.md and docs/number-of-clusters.md have tables. The rules of `shoal.methods.auto` were
chosen on these sets.

What else docs/representations.md tells is kept as figures; the code that measured it lies at commit a5dd0900: scores
that rank clusterings (`label_free.json`), the verdict on noise and on the sets (`label_free_groups.json`), its words at
single sites (`label_free_by_site.json`), and light, stain, counts and windows.
"""
