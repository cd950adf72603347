"""Where the time of a run goes, with evidence."""
