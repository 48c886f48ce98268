"""Numbers that pages say in a sentence, one module a technique, computed from its trace."""
