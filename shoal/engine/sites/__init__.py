"""Runs whose samples lie at sites: requests of the lead as bytes, and a site's answers to them."""
