"""Losses that several systems share, as pure functions."""
