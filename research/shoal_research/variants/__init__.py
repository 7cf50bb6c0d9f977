"""Variants of methods that only studies need, added to Shoal by the entry points `shoal.methods`."""
