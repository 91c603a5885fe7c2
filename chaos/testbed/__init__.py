"""Policies and a scenario made to go together, before anything stands: what lab and simulator both play.

``subjects`` are who is judged; ``fit`` gives policies the engines of the scenario and divides the times of
requests by how much faster those are, ``shaping`` finds requests that their routes take, ``documents`` writes
policies out again. ``blueprint`` is all of it in one value. Pure, but for reading the policies.
"""
