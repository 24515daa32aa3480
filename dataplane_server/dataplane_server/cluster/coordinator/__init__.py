"""The coordinator: the server of a cluster, what it knows of its nodes, and where their clients reach it."""
