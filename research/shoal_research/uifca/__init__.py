"""Studies of UIFCA's tables and figures."""
