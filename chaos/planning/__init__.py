"""Sums about fleets: how many spares, how much load, until when. Pure functions; nothing here starts anything."""
