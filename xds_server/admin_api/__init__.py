"""Read model of the admin port: its JSON types, endpoints and schema.

The server serializes these types; the command line, the dashboard and `switchgear top` parse them.
"""
