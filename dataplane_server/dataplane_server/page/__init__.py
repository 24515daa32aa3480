"""The page: what the server does now, in a browser. It only reads, and computes only while it is open."""
