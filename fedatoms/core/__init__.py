"""State-dict arithmetic, randomness, options, tables of methods, the ledger of bytes, files and their border;
imports nothing of the package."""
