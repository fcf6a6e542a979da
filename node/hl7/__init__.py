"""HL7 version 2 without a framework: text, frames, acknowledgments."""
