"""Fit policies and a scenario together, for both the lab and the simulator.

``subjects`` are the policies or static Envoys under test. ``policy_fit`` gives policies the scenario's engines and
scales request times, ``request_shape`` finds requests that match their routes, ``policy_documents`` writes the
policies. ``blueprint`` combines all of it. Pure, except for reading the policies.
"""
