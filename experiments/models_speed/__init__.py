"""Time diagnosing and sharpening a model against running it unchanged."""
