"""The policy documents as a cluster's custom resources: definitions made from the models that judge files."""
