"""Data sets, partitions, augmentations. Knows no other room."""

if __name__ != "shoal.data":
    raise ImportError("this folder is the package shoal.data: import it by that name")
