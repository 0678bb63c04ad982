"""From the paper's claims to measured evidence, tables and pages; imports runs and below."""
