"""Logs of a run beside MLflow's, which `tracking.also` names."""
