"""A group's logs: one transaction's journey, parked entries, and a survey of all logs without owning them."""
