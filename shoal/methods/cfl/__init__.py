"""CFL, clustered federated learning by recursive bipartition, and its baselines: FedAvg, IFCA, local training."""
