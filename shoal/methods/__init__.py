"""The federated systems, one module each, and their losses."""
