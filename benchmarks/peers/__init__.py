"""The systems that ours is compared with, each in an environment and in processes of its own."""
