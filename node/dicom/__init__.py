"""DICOM headers, read within limits and parsed into values; and how the node identifies its own objects."""
