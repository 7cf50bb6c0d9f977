"""Networks: encoders, heads, normalising flows. This package imports no other of Shoal's."""

if __name__ != "shoal.models":
    raise ImportError("this folder is the package shoal.models: import it by that name")
