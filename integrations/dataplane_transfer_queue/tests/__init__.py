"""TransferQueue's module, and verl's buffer, on a server."""
