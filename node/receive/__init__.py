"""Takes DICOM objects in: C-STORE, C-ECHO and N-EVENT-REPORT, from the first byte to the acknowledgment."""
