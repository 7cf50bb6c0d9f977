"""Data that no default was chosen on: ten sets as people bring them, and what the plain default makes of them."""
