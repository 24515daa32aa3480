"""What the server answers, as records: descriptions, listings, grants, and counts of the last minute."""
