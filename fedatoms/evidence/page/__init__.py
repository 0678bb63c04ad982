"""One HTML page and one CSV file of what was found; imports claims and below, nothing of reproduce."""
