"""LoRA adapters: their settings, their layers and their files."""
