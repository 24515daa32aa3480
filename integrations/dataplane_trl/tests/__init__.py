"""TRL's rollout worker and rollout_func on a server."""
