"""Injectors apply and revert fault actions, one module per kind of target."""
