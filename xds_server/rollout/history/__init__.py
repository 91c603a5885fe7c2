"""Changes of policies: what an edit would do, which versions there were, and how a new one reaches proxies.

Pure but for ``archive``, which keeps versions on disk, and ``routes``, which answers on the admin port.
"""
