"""An experiment as a folder: run, resume, lock, checkpoints, results, comparison; imports experiment and below."""
