"""Loading pretrained models with transformers or NeMo Automodel, and their tokenizers."""
