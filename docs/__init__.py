"""Documents, and what makes tables of them from the code."""
