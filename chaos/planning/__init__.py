"""Plan fleets: spares, capacity, growth. Pure functions without side effects."""
