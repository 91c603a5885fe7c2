"""Policy history: versions, differences, and the impact of an edit on live traffic.

Pure except for ``version_archive`` and ``digest_table``, which keep versions on disk.
"""
