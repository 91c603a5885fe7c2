"""Policies as Istio's own objects, and what becomes of every field on the way."""
