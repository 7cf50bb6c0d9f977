"""UIFCA, one normalising flow a cluster, and its baselines: IFCA on flows, k-FED, ClusterGAN."""
