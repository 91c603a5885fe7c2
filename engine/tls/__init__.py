"""TLS of all ports: rotating certificate files and peer identities."""
