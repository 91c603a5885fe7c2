"""State on disk that survives restarts, and atomic writes."""
