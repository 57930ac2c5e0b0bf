"""Code that all backends share. It is independent of any broker."""
