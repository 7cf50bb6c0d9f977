"""What local training and averaging share: batches, steps, optimisers, weights as tensors and vectors, K-means."""
