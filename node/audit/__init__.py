"""The audit trail by PS3.15 A.5: log events become messages, which are kept on disk until a collector has them."""
