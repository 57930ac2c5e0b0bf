"""What backends share. Nothing here knows a broker."""
