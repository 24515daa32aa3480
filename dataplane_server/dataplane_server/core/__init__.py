"""Decisions only: no gRPC, no asyncio, no clock, no disk. `plane.DataPlane` is the face, `calls` its vocabulary."""
