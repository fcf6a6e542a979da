"""Orders that an information system announces by HL7: received, stored, and found when their study is read."""
