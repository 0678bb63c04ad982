"""Plans, runs and shows what a study of the paper needs; imports claims and below, nothing of the page."""
