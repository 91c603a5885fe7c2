"""What the process itself is and holds, for whoever looks for a fault: versions, limits, contents."""
