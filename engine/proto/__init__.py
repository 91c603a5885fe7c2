"""The wire format of an agent's reports: ``engine_report.proto`` and the code generated from it by ``make proto``."""
