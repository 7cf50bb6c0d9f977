"""The messages of clients and workers: requests, answers, their inspection, and sums of them."""
