"""What the page is styled and moved by."""
