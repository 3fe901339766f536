"""Result files in, figures and tables out. Nothing here trains."""
