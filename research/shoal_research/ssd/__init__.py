"""Studies of SSD's table and of federated self-supervised learning."""
