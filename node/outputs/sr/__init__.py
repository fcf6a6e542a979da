"""The structured report (PS3.16 TID 1500): its document, its findings, its content items."""
