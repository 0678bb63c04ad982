"""Runs, measures and explanations on disk: found, named, grouped, matched with the paper; imports explain and below."""
