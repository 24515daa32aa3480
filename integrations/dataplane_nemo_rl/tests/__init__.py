"""NeMo-RL's client on a server."""
