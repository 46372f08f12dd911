"""Learning: a step against one written out by hand; policies stay apart."""
