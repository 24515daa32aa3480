"""slime's data source on a server."""
