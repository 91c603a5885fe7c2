"""Who may do what: identities of peers, what they are allowed, and the certificates that prove them."""
