"""Runs contestants in processes of their own, compares what they deliver, and writes the page."""
