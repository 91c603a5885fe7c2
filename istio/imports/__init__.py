"""What other tools are configured by, as policies; and a list of what was not understood of it."""
