"""Advice on policies that are valid: ``lint`` runs every rule, one module per subject."""
