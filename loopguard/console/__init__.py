"""The console: what operators look at, and where they tune a profile."""
