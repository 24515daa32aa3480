"""FP8 scales for an engine's quantised KV cache, measured while the trainer's model reads a batch."""

from trainer_adapter.automodel.qkv_calibration._calibration import QkvCalibration, real_tokens

__all__ = ["QkvCalibration", "real_tokens"]
