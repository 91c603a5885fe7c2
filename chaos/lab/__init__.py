"""The lab: real processes on loopback, started for one experiment, faulted, observed and removed."""
