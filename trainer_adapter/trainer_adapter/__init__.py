"""The trainer's side of the data plane: policies, workers, losses, and weights for generation engines."""
