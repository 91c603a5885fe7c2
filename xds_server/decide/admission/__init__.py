"""Admission: engine capacity, the pool's degradation level, and each proxy's share of the ceiling."""
