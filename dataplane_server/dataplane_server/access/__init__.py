"""Who calls, and what they may do: TLS, tokens, certificates, users of this host, roles by partition."""
