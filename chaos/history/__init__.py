"""What was seen in one experiment: events, their file, and the value that checks and reports read."""
