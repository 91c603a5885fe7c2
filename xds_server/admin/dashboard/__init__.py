"""The dashboard: one page that shows a running server, and what keeps it live."""
