"""Who holds which samples: schemes, planted transformations, and the table that records them."""
