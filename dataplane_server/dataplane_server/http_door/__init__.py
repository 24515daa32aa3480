"""A door for agents without Python: puts of samples as JSON over HTTP. Off unless the server is told an address."""
