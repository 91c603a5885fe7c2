"""Which policies are offered: from where, as which version, to which proxies first, and how far they have come."""
