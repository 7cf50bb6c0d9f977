"""The views of a run for people: figures, reports, the MLflow log, served models, predictions."""
