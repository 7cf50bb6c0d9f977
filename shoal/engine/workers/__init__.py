"""Processes that train and evaluate, on this machine."""
