"""The command line, with one file per verb. It composes the parts, prints, and turns errors into exit statuses."""
