"""One control plane as a process: its parts made, joined and run until told to end; alone or as a replica."""
