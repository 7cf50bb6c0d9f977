"""Studies of FedPNP's table and figures."""
