"""Switchgear control plane: compiles policies and engine reports into xDS for Envoy."""
