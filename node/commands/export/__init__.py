"""Export films with their reports and labels for research, de-identified; the node's own files are only read.

`pseudonyms` maps patients, UIDs and days, `deidentified` cleans DICOM objects, `folder` writes them and their tables.
"""
