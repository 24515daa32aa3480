"""What is told about the core: figures, history, invariants, digest. Nothing here decides."""
