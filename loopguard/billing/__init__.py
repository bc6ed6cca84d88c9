"""The cold path: what discarded output costs, kept durably and priced later."""
