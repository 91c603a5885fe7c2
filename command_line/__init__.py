"""What all three commands share: groups, output formats, tables, completion. It knows no product."""
