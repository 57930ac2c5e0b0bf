"""What a group's logs say: one transaction's journey, parked entries, and a survey of all logs without owning them."""
