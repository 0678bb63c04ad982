"""Personal models for clients that join after training: fitted, saved and loaded; imports runs and below."""
