"""Verdict reports: terminal, JUnit XML, HTML."""
