"""HL7 version 2 without a network library's opinion: text, frames, acknowledgments."""
