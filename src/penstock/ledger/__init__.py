"""What consumers were given and what they settled. Pure: time comes in, answers go out."""
