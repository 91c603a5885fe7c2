"""The wire format of an agent's reports: ``engine_report.proto``, and what ``make generated`` makes of it."""
