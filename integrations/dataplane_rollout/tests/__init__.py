"""What generators return, as rows."""
