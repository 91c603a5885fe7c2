"""Composition and lifetime of one control-plane process, standalone or as a replica."""
