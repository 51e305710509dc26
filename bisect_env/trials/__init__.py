"""One trial on this host: launch, watch, capture, classify."""
