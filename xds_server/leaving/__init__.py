"""How engines leave the proxies: how long each hop takes, and how far it has come."""
