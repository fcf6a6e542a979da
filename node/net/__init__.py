"""What all listeners share: TLS, admission of callers, refused callers, limited HTTP connections."""
