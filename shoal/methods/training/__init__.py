"""Local training: batches, gradient steps one by one or stacked, optimisers, BatchNorm's statistics, CUDA graphs."""
