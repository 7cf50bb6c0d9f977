"""The round engine: run folder, checkpoints, rounds, dispatch, workers.

Knows methods, and neither Prefect nor MLflow.
"""
