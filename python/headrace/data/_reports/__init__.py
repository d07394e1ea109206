"""Reports of a loader: statistics and a timeline."""
