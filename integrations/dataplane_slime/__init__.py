"""slime's rollout data source on the server. What the options of slime name is here."""

from dataplane_slime._data_source import DataPlaneDataSource, convert_samples_to_train_data, note_rollout

__all__ = ["DataPlaneDataSource", "convert_samples_to_train_data", "note_rollout"]
