"""The detector: words, one module per rule, and the Detector that feeds them."""
