"""Encoding and decoding of Envoy's messages.

Out: ``encode`` copies envoy-data-plane messages into protobuf classes derived from their metadata, ``eds`` joins
a ClusterLoadAssignment from cached chunks, and ``responses`` frames encoded resources into discovery responses.
In: ``decode`` parses peers' messages with classes derived from the same metadata. The package knows no policies,
streams or sockets.
"""
