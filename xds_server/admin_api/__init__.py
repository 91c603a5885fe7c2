"""The read model of the admin port: the types its JSON is made of, its endpoints, and their schema.

The server serialises from these types, and the command line, the dashboard and `switchgear top` parse into them.
"""
