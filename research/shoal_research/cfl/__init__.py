"""Studies of CFL's figures."""
