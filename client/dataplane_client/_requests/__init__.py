"""Requests: messages of verbs, made of checked arguments and encoded columns."""
