"""What a running server answers with, as values: the JSON of the admin port is exactly these."""
