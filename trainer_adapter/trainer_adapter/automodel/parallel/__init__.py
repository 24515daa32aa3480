"""How ranks divide a model and its sequences: mesh, FSDP2, tensor, sequence, context and vocabulary parallelism."""
