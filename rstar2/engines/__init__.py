"""What can stand behind `generate`: token ids in, token ids out."""
