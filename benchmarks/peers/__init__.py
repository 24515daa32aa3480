"""The systems that we compare with, each in a separate environment and in separate processes."""
