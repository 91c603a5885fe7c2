"""How pulls are done and taken back, one module per sort of thing that is pulled at."""
