"""The laboratory: real processes on loopback, built for one experiment, broken, watched, and gone again."""
