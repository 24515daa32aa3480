"""Verbs: what a call checks and changes. What surrounds a change is in `core.turn`."""
