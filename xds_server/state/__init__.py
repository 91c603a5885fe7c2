"""What is kept on disk over a restart, and how a file is written whole or not at all."""
