"""Prepared sets: how they lie in the store, how public ones are made, and how they are opened."""
