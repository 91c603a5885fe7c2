"""The same policies for the Gateway API and Envoy Gateway, with a list of what is lost."""
