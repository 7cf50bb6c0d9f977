"""The file MLflow runs to load the final model."""

from mlflow.models import set_model

from review.serving import FederatedModel

set_model(FederatedModel())
