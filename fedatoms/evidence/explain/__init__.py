"""Why it works, tested: rounds of a run replayed, and what latent clients change in them; `study` puts it together."""
