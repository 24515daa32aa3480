"""`python -m dataplane_server` is the command `dataplane-server`."""

from dataplane_server.cli import main

main()
