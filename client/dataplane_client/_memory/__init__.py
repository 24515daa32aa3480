"""Values in memory that client and server share, and the buffers that reads are placed in."""
