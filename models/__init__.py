"""Networks only: encoders and heads. Knows no other room."""

if __name__ != "shoal.models":
    raise ImportError("this folder is the package shoal.models: import it by that name")
