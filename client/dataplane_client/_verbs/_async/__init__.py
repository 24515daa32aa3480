"""The client, written once. `scripts/unasync.py` derives the blocking twin in `_sync` from these modules."""
