"""One run as text and numbers: its fields and checks, presets, and how it becomes a simulation; imports the engine."""
