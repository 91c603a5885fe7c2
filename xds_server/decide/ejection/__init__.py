"""Which engines stay in rotation: five ejectors ask, one arbiter grants within the capacity floor."""
