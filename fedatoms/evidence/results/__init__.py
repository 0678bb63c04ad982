"""Finished runs found, grouped and matched with the paper's cells."""
