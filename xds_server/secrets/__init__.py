"""Certificates for engines: their value, the folder they come from, and their validation."""
