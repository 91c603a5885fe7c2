"""Policies: their models, and how they are read, validated and merged."""
