"""The process beside an engine: it judges the engine, tells whoever asks, and makes it drainable."""
