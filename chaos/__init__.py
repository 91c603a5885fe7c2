"""Break things, then judge: a simulated engine, open-loop load and the demonstration."""
