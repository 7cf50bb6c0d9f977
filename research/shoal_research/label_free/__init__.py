"""What clusters without labels are worth: the verdict (`groups`) and offsets of sites (`sites`) on sets with labels.

`python -m shoal_research.label_free` writes the tables of docs/which_method.md, docs/number-of-clusters.md and
research/docs/representations.md from the kept figures.

The rules of `shoal.methods.auto` were chosen on the tuning sets: `label_free.json` has the spaces, landmarks and
numbers of clusters that they are judged by. At commit ba6372e4 this command measures them. Commit a5dd0900 has the code
of what else research/docs/representations.md tells: scores that rank clusterings, the verdict's words at single sites
(`label_free_by_site.json`), and light, stain, counts and windows.
"""
