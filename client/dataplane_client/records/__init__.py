"""What callers and the server exchange, as plain records: metas, policies, filters, descriptions, listings, grants."""
