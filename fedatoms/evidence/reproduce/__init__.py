"""From a claim of the paper to the evidence: what to run for it, running what is missing, and paper beside ours."""
