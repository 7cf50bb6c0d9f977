"""The file MLflow runs to load the final model."""

from mlflow.models import set_model

from shoal.review.mlflow_log.pyfunc import FederatedModel

set_model(FederatedModel())
