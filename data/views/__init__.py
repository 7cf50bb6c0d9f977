"""Samples on a device, and random views of them."""
