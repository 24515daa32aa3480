"""Metrics, traces, log events, and health over HTTP."""
