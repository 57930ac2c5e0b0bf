"""The tables of the fence."""
