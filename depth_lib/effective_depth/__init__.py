"""From curves to one number: the rules, their intervals, and the published values."""
