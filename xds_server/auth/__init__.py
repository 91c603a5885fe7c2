"""Authentication and authorization of peers, and their certificates."""
