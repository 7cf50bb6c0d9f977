"""Prefect flows, deployments and the command line."""
