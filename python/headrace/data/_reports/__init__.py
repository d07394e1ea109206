"""What a loader tells of itself: statistics and a timeline."""
