"""The blocking client, derived from `_async` by `scripts/unasync.py`. Do not edit."""
