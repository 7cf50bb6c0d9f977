"""FedPNP, federated contrastive clustering with a past negatives pool, and its baselines."""
