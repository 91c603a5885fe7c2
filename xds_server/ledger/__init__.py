"""Events: what happened and why, their storage, and reports made from them."""
