"""Data sets, partitions, augmentations. Knows no other room."""
