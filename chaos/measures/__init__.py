"""Measures of a history. Pure; the checks compare them with limits."""
