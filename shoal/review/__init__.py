"""What people look at: figures, reports, the MLflow log, served models, predictions."""
