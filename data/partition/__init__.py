"""Partitions of samples among clients: schemes, planted transformations, and the table that records them."""
