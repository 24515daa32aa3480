"""Messages of the wire: requests parsed within bounds, and streams of frames."""
