"""Partitions of samples among clients: schemes, and the table that records them."""
