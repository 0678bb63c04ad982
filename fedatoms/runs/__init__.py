"""An experiment as a folder: run, resume, lock, checkpoints, provenance, comparison; imports experiment and below."""
