"""What clients and workers send: requests, answers, their inspection, and sums of them."""
