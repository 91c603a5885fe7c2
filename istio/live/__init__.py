"""Sync with istiod: ejected engines leave Istio's endpoints until they are in rotation again."""
