"""Personal models for clients that come later: fitted to their data, saved and loaded; imports runs and below."""
