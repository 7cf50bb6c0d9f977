"""Scores: clusters against classes, representations, whole models, and label-free measures."""
