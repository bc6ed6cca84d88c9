"""`loopguard scan`: the configured detector over saved replies, and a page of its curves."""
