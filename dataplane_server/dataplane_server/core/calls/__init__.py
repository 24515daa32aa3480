"""What goes into the core and what comes out: calls (`requests`), answers, effects, and their values."""
