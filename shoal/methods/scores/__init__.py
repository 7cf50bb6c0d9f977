"""How results are judged: clusters against classes, representations, whole models."""
