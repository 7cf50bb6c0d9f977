"""Runs that are killed, stopped and starved in every way that fits on one machine: `make chaos`."""
