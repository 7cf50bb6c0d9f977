"""One YAML per table or figure of a paper."""
