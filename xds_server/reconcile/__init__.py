"""The loop that keeps what proxies are served equal to what policies and engines say, and what it goes by."""
