"""What a run is on disk: its folder, checkpoints, manifests, tables."""
