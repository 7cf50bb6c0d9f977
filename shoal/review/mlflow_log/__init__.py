"""Runs as MLflow shows them, and models as it keeps them."""
