"""Scenarios: what an author writes, and the experiment that it comes to."""
