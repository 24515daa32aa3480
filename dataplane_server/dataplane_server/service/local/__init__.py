"""Frames without gRPC: at the local socket, for clients that map the arena, and at the direct port."""
