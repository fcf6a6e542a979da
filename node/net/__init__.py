"""Common parts of all listeners: TLS, admission of callers, refused callers, limited HTTP connections."""
