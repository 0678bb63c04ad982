"""State-dict arithmetic, randomness, options, the ledger of bytes, lookup, files; imports nothing of the package."""
