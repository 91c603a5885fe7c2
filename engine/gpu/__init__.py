"""What the GPUs of an engine say of themselves, and what that is worth: read, remember, judge."""
