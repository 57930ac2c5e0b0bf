"""txcore compared with its alternatives: each system measured alone, in turn, on one machine."""
