"""Dashboard: one page that shows a running server, and its live stream."""
