"""What callers and the server exchange, as plain records: policies, filters, descriptions, listings, grants."""
