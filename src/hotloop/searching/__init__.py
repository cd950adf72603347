"""A search for a spec's best numbers: its space, its trials in processes of their own, what it leaves behind."""
