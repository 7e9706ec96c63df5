"""A long attention, verified by blocks of its query rows, or by a sample of them."""
