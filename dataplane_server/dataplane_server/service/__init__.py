"""The gRPC shell around the core: requests in, calls of the core, responses out; and everything that waits."""
