"""Frozen values that the stages of the control plane share."""
