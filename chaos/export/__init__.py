"""Export scenarios to clusters: Chaos Mesh and Litmus manifests, with remarks on differences."""
