"""Checks what the command `check` cannot: disk, database, model, ports, certificates, clock, the webhook of
alerts, and destinations.

It changes nothing: a temporary file in the storage folder is removed again, the database is opened for reading, and a
destination gets association requests and echoes. It may run beside a node. No line contains a patient or a password.
"""
