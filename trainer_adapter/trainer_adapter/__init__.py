"""Between the data plane and the trainer's workers."""
