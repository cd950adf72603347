"""Why a run is slow, what would help, and by how much."""
