"""Faults: one file per kind, with its settings, lab actions and cluster manifests."""
