"""K-means in its several forms, and the number of clusters."""
