"""Certificates towards engines: the value that is translated, the folder it comes from, and who judges that."""
