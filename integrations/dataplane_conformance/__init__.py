"""Promises of a data plane for rollouts, as experiments that run against any system through a thin driver.

    python -m dataplane_conformance ADDRESS

Each promise is a function of `promises`, whose name is its sentence. It starts clients in processes of their own,
kills, stops and delays them, and accounts for every row. See docs/conformance.md.
"""
