"""What an engine knows of itself."""
