"""A run on disk: its folder, checkpoints, manifests and tables."""
