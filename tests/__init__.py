"""A regular package, which goes before the `tests` that some distributions bring (verl does)."""
