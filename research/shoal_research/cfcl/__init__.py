"""Studies of CF-CL's figures."""
