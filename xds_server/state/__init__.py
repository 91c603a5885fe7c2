"""What is kept on disk over a restart: the last good policies, and how a file is written whole or not at all."""
