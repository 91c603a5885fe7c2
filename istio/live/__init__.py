"""Beside istiod while it runs: engines that are out leave Istio's endpoints, and come back when they are in."""
