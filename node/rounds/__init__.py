"""What a round covers, says and writes, decided from what the spool holds of its study."""
