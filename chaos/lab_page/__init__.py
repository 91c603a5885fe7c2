"""The page of ``switchgear-chaos lab``: engines, load, buttons for faults, and a guided incident."""
