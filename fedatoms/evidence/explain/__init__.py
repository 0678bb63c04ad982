"""Replays rounds of a run and measures what latent clients change in them; imports measures, paper and below."""
