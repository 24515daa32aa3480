"""What the server shows of itself: metrics, health over HTTP, log events."""
