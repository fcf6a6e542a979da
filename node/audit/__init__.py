"""The audit trail by PS3.15 A.5: log events become messages, one a line of a file, which rsyslog sends on."""
