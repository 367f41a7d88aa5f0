"""What every report shares: tables, style, HTML."""
