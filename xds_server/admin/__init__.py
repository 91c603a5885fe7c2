"""Admin port: health, metrics, status and configuration over HTTP."""
