"""The hot path: from the caller's request to the upstream's stream and back."""
