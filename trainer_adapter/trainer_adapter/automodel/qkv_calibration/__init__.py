"""DOC"""

from trainer_adapter.automodel.qkv_calibration._calibration import QkvCalibration, real_tokens

__all__ = ["QkvCalibration", "real_tokens"]
