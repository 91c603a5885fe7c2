"""What can go wrong: one file per fault, with its settings, actions and manifests. The lab does the actions."""
