"""The same policies for other meshes and gateways, with a list of what is lost on the way."""
