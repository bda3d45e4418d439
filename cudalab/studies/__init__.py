"""What the studies of the parts measure and say, one module a part; the parts list them."""
