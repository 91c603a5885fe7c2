"""``switchgear export``, ``switchgear import`` and ``switchgear istio``: other meshes and gateways."""
