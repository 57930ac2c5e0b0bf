"""The doctor: compares a live broker and a live database with the needs of durable operation."""
