"""What loopguard knows, without I/O: no loop, socket, clock, log or settings."""
