"""A run as text and numbers: fields, checks, identity, files, presets, and its simulation; imports the engine."""
