"""What sharpmax costs inside Hugging Face models."""
