"""The command line: one short file per verb. Composes the parts, prints, and turns errors into exit statuses."""
