"""Federated clustering of vectors: table rows, embeddings, or what a frozen encoder makes of images."""
