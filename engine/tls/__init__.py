"""TLS of every port: certificates from files, followed as they rotate, and who a peer has proved to be."""
