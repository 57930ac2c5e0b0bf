"""The results of all runs as Delta Lake tables in the store, and questions to them in SQL."""
