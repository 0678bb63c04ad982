"""How fast and how big: `cpu` has ratios for any machine, `gpu` the contest on a CUDA card, `report` its page."""
