"""The settings of a client, and with which credentials it connects: TLS and tokens."""

from dataplane_client._connect.options import ClientOptions, Credentials, TransportChoice, TransportName

__all__ = ["ClientOptions", "Credentials", "TransportChoice", "TransportName"]
