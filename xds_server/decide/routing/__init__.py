"""Where what is let in goes: second tries, limits of time, weights of engines and of zones."""
