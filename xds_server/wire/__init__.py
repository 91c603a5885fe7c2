"""Envoy's messages as bytes, both ways, and nothing else.

Out: ``encode`` copies envoy-data-plane messages into protobuf classes derived from their metadata, ``eds``
joins a ClusterLoadAssignment from cached chunks, and ``responses`` frames encoded resources into discovery
responses. In: ``decode`` reads what peers send with classes derived from the same metadata. The package
knows no policy, no stream and no socket.
"""
