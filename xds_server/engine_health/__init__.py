"""Where policies and reports come from: files on disk, engines asked directly."""
