"""State-dict arithmetic, addressed randomness, names in tables, files; imports nothing else of the package."""
