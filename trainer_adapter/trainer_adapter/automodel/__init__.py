"""One rank's model: configuration, set-up, microbatches, forward and backward passes, checkpoints.

The model runs under FSDP2 with tensor, sequence and context parallelism.

Users import `config`, `data`, `train`, `setup`, `checkpoint` and `qkv_calibration`, whose names mirror NeMo-RL's.
Everything else is implementation. A part imports only parts that are listed above it:

    config           the policy's configuration, and the values that set-up derives from it
    choices          the device and the attention that the configuration asks for
    packages         optional packages (transformers, NeMo Automodel)
    rank             this process among the ranks: its device, its notices, failing together
    data             batches, microbatches and the inputs of a forward pass
    parallel         device mesh, FSDP2, tensor, sequence, context and vocabulary parallelism, attention
    adapters         LoRA layers, their settings and their files
    checkpoint       weights and optimizer state on disk
    models           loading a model with transformers or NeMo Automodel, its tokenizer
    setup            from a configuration to a model and its optimizer
    train            forward and backward passes, losses, log-probabilities, gradient norm, statistics
    qkv_calibration  FP8 scales for a quantised KV cache
"""
