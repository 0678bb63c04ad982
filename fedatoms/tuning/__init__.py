"""Searches for settings: trials that are ordinary runs, scored on held-out images, in a study that survives a kill."""
