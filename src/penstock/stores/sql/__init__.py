"""What all SQL databases share."""
