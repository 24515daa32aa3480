"""A node: its arena, its clients, and the bytes that it exchanges with other nodes."""
