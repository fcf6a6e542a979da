"""What is good and what is wrong with a node now: `doctor`, `status`, the page `/system` and alerts tell it."""
