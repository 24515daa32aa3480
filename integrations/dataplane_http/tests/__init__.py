"""The gateway over real HTTP, before a real server."""
