"""From order to effect: business rows against committed transactions, and their messages against consumers' inboxes."""
