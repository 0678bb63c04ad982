"""Networks of others, written small: what a user may bring, each with an input that it takes."""
