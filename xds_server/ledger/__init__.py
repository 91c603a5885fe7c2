"""What happened, and why: events, what is kept of them, and the sentences and reports made of them."""
