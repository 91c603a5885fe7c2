"""Verdicts for people and for pipelines."""
