"""The reconcile loop: keeps what proxies are served equal to policies and engine states."""
