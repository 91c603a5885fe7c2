"""History of one experiment: its events, its file, and the value that checks and reports use."""
