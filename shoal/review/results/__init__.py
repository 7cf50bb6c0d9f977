"""A finished run as objects and tables."""
