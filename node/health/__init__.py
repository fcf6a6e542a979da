"""The node's health: checks and troubles for `doctor`, `status`, the page `/system` and alerts."""
