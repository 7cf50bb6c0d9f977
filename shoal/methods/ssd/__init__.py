"""SSD, soft separation and distillation, and its baselines: FedSimCLR, FedBYOL, FedEMA."""
