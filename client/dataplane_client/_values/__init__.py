"""Values of columns: bytes, arrays and tensors, and the ways from one to the other."""
