"""Workers that train and score with FSDP2, tensor and context parallelism, fed from the data plane."""
